// Vercel's AI SDK over /v1, by its provider for OpenAI-compatible servers: node vercel_ai_client.mjs URL MODEL KEY
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const from = createRequire(`${process.env.NODE_PATH}/`);
const { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } = from("ai");
const { createOpenAICompatible } = from("@ai-sdk/openai-compatible");
const [url, name, key] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const provider = createOpenAICompatible({ name: "flyweight", baseURL, apiKey: key, includeUsage: true, supportsStructuredOutputs: true });
const model = provider(name);
const short = { model, temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const long = { ...short, maxOutputTokens: 300 };
const messages = [{ role: "user", content: "A cat sat." }];
// The SDK prints every error of a stream; they are asserted here.
const quiet = { onError() {} };

const whole = await generateText({ ...short, messages });
assert.ok(whole.text && whole.finishReason === "length" && whole.usage.outputTokens === 12);
const stream = streamText({ ...short, messages, ...quiet });
let said = "";
for await (const part of stream.textStream) said += part;
assert.equal(said, whole.text);
assert.equal((await stream.usage).outputTokens, 12);
assert.ok((await generateText({ ...short, prompt: "Once upon a time", seed: 1, stopSequences: ["x"] })).text);

const properties = { asleep: { type: "boolean" }, legs: { enum: [3, 4] } };
const schema = jsonSchema({ type: "object", properties, required: ["asleep", "legs"] });
const output = Output.object({ schema });
const shaped = await generateText({ ...long, messages, output });
assert.deepEqual(Object.keys(shaped.output).sort(), ["asleep", "legs"]);
const streamed = streamText({ ...long, messages, output, ...quiet });
let last;
for await (const part of streamed.partialOutputStream) last = part;
assert.deepEqual(last, shaped.output);

const asked = [];
const inputSchema = jsonSchema({ type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] });
const weather = tool({
  description: "Report the weather.", inputSchema,
  execute: async ({ city }) => { asked.push(city); return `Sun over ${city}.`; },
});
const toolChoice = { type: "tool", toolName: "weather" };
const called = await generateText({ ...long, messages, tools: { weather }, toolChoice });
assert.ok(called.toolCalls.length > 0 && asked.length === called.toolResults.length);
const steps = await generateText({
  ...long, maxOutputTokens: 100, messages, tools: { weather }, stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? toolChoice : "none" }),
});
assert.ok(steps.steps.length === 2 && steps.text);

const { embeddings } = await embedMany({ model: provider.embeddingModel(name), values: ["A cat", "A dog"] });
assert.ok(embeddings.length === 2 && embeddings[0].length > 0);
const text = provider.completionModel(name);
assert.ok((await generateText({ ...short, model: text, prompt: "Once upon a time" })).text);

const status = (code) => (error) => error.statusCode === code;
await assert.rejects(generateText({ ...short, model: provider("nothing"), messages }), status(404));
const stranger = createOpenAICompatible({ name: "flyweight", baseURL, apiKey: "wrong" });
await assert.rejects(generateText({ ...short, model: stranger(name), messages }), status(401));
