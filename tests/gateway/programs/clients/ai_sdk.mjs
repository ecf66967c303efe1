// Vercel's AI SDK: it names the items of replies by their ids.
import { writeSync } from "node:fs";
import { openai } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(process.env.VERL_MAS_TASK);
const inputSchema = z.object({ a: z.number(), b: z.number() });
const add = tool({ description: "Add two numbers.", inputSchema, execute: async ({ a, b }) => String(a + b) });
const messages = [{ role: "user", content: task.question }];
const asks = { model: openai.responses("solver"), tools: { add }, stopWhen: stepCountIs(4) };
const first = await generateText({ ...asks, messages });
messages.push(...first.steps.flatMap((step) => step.response.messages), { role: "user", content: "Sure?" });
const { text } = await generateText({ ...asks, messages });
writeSync(Number(process.env.VERL_MAS_OUTCOME_FD), JSON.stringify({ answer: text }));
