// OpenAI's JavaScript client over every endpoint it has that is served here: node openai_client.mjs URL MODEL KEY
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(`${process.env.NODE_PATH}/`)("openai");
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: process.argv[4], maxRetries: 0 });
const messages = [{ role: "user", content: "A cat sat." }];
const model = process.argv[3];
assert.equal((await client.models.list()).data[0].id, model);
assert.equal((await client.models.retrieve(model)).id, model);

const told = { model, messages, temperature: 0, max_tokens: 12 };
const whole = await client.chat.completions.create(told);
let said = "";
for await (const part of await client.chat.completions.create({ ...told, stream: true })) {
  said += part.choices[0]?.delta?.content ?? "";
}
assert.equal(said, whole.choices[0].message.content);

const prompt = { model, prompt: "Once upon a time", temperature: 0, max_tokens: 12 };
const text = (await client.completions.create(prompt)).choices[0].text;
said = "";
for await (const part of await client.completions.create({ ...prompt, stream: true })) {
  said += part.choices[0].text;
}
assert.equal(said, text);

const packed = await client.embeddings.create({ model, input: ["A cat", "A dog"] });
const plain = await client.embeddings.create({ model, input: ["A cat", "A dog"], encoding_format: "float" });
assert.deepEqual(
  packed.data.map((one) => Array.from(one.embedding, Math.fround)),
  plain.data.map((one) => one.embedding.map(Math.fround)),
);

const asked = { model, input: "A cat sat.", temperature: 0, max_output_tokens: 12 };
const response = await client.responses.create(asked);
said = "";
for await (const event of await client.responses.create({ ...asked, stream: true })) {
  if (event.type === "response.output_text.delta") said += event.delta;
}
assert.equal(said, response.output_text);

const two = await client.chat.completions.create({ ...told, n: 2, logprobs: true, top_logprobs: 2 });
assert.deepEqual(two.choices.map((one) => one.logprobs.content.length), [12, 12]);

const schema = { type: "object", properties: { asleep: { type: "boolean" } }, required: ["asleep"], additionalProperties: false };
const format = { type: "json_schema", json_schema: { name: "cat", schema, strict: true } };
const bound = await client.chat.completions.create({ ...told, max_tokens: 60, response_format: format });
assert.equal(typeof JSON.parse(bound.choices[0].message.content).asleep, "boolean");

const parameters = { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const named = { type: "function", function: { name: "weather" } };
const calling = { ...told, max_tokens: 60, tools, tool_choice: named, parallel_tool_calls: false };
const [call] = (await client.chat.completions.create(calling)).choices[0].message.tool_calls;
assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));
const stream = client.chat.completions.stream({ ...calling });
const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
assert.equal(streamed.function.arguments, call.function.arguments);

const flat = [{ type: "function", name: "weather", parameters, strict: true }];
const choice = { type: "function", name: "weather" };
const called = await client.responses.create({ ...asked, max_output_tokens: 60, tools: flat, tool_choice: choice, parallel_tool_calls: false });
assert.equal(called.output[0].name, "weather");

const refused = (work, kind, more) => assert.rejects(work, (error) => {
  assert.equal(error.constructor, kind);
  for (const [name, value] of Object.entries(more)) assert.equal(error[name], value);
  return true;
});
await refused(client.completions.create({ ...prompt, max_token: 3 }), OpenAI.BadRequestError, { status: 400, param: "max_token" });
await refused(client.completions.create({ ...prompt, model: "x" }), OpenAI.NotFoundError, { code: "model_not_found" });
await refused(new OpenAI({ baseURL: client.baseURL, apiKey: "wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError, { status: 401 });
