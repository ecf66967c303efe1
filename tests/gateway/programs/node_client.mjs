// The npm package `openai`: a conversation with a tool. It reads OPENAI_BASE_URL and OPENAI_API_KEY.
import { writeSync } from "node:fs";
import OpenAI from "openai";

const task = JSON.parse(process.env.VERL_MAS_TASK);
const client = new OpenAI();
const properties = { a: { type: "integer" }, b: { type: "integer" } };
const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties } } }];
const messages = [{ role: "user", content: task.question }];
let answer = "";
for (let turn = 0; turn < 6; turn++) {
  const completion = await client.chat.completions.create({ model: "solver", messages, tools });
  const { message } = completion.choices[0];
  messages.push(message);
  answer = message.content;
  if (!message.tool_calls) break;
  for (const call of message.tool_calls) {
    const { a, b } = JSON.parse(call.function.arguments);
    messages.push({ role: "tool", tool_call_id: call.id, content: String(a + b) });
  }
}
const stream = await client.chat.completions.create({ model: "critic", messages, stream: true });
let verdict = "";
for await (const chunk of stream) verdict += chunk.choices[0]?.delta?.content ?? "";
writeSync(Number(process.env.VERL_MAS_OUTCOME_FD), JSON.stringify({ answer, info: { verdict } }));
