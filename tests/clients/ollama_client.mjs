// Ollama's JavaScript client over /api: node ollama_client.mjs URL MODEL KEY
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { Ollama } = createRequire(`${process.env.NODE_PATH}/`)("ollama");
const [host, model, key] = process.argv.slice(2);
const client = new Ollama({ host, headers: { authorization: `Bearer ${key}` } });
const messages = [{ role: "user", content: "A cat sat." }];
const options = { temperature: 0, num_predict: 12 };

const whole = await client.chat({ model, messages, options });
assert.ok(whole.message.content && whole.done && whole.eval_count === 12);
let said = "";
for await (const part of await client.chat({ model, messages, options, stream: true })) said += part.message.content;
assert.equal(said, whole.message.content);

const prompt = { model, prompt: "Once upon a time", options };
const text = (await client.generate(prompt)).response;
said = "";
for await (const part of await client.generate({ ...prompt, stream: true })) said += part.response;
assert.ok(text && said === text);

const properties = { asleep: { type: "boolean" }, legs: { enum: [3, 4] } };
const format = { type: "object", properties, required: ["asleep", "legs"] };
const shaped = await client.chat({ model, messages, format, options: { temperature: 0, num_predict: 300 } });
assert.deepEqual(Object.keys(JSON.parse(shaped.message.content)).sort(), ["asleep", "legs"]);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "Report the weather.", parameters } }];
const call = { function: { name: "weather", arguments: { city: "Rome" } } };
const after = [...messages, { role: "assistant", content: "", tool_calls: [call] }, { role: "tool", tool_name: "weather", content: "Sun." }];
assert.ok((await client.chat({ model, messages: after, tools, options })).message.content);

const { embeddings } = await client.embed({ model, input: ["A cat", "A dog"] });
assert.ok(embeddings.length === 2 && embeddings[0].length === embeddings[1].length && embeddings[0].length > 0);

const listed = (await client.list()).models.map((one) => one.name);
assert.ok(listed.length === 1 && listed[0].startsWith(model));
assert.deepEqual((await client.ps()).models.map((one) => one.name), listed);
assert.equal((await client.show({ model })).details.format, "gguf");
assert.ok((await client.version()).version);

const refused = (work, status) => assert.rejects(work, (error) => error.status_code === status && error.error.length > 0);
await refused(client.chat({ model: "nothing", messages }), 404);
await refused(client.chat({ model, messages, options: { temperature: -1 } }), 400);
await refused(new Ollama({ host }).chat({ model, messages }), 401);

const stopped = await client.generate({ ...prompt, options: { temperature: 0, num_predict: 2000 }, stream: true });
let parts = 0;
await assert.rejects(async () => {
  for await (const _ of stopped) if (++parts === 3) stopped.abort();
}, { name: "AbortError" });
assert.ok(parts < 2000);
