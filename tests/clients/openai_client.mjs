// OpenAI's JavaScript client over every endpoint it has that is served here: node openai_client.mjs URL
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(`${process.env.NODE_PATH}/`)("openai");
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "A cat sat." }];
const model = (await client.models.list()).data[0].id;
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

await assert.rejects(client.completions.create({ ...prompt, max_token: 3 }), { status: 400, param: "max_token" });
