"""Client of a policy that verl serves. It tokenizes prompts, sends them to the engine, and builds rows from the
replies."""

import asyncio
import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import ray
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker, DictConfigWrap
from verl.experimental.agent_loop.tool_agent_loop import SPEC_DECODE_EXTRA_KEYS, ToolAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import apply_greedy_sampling_params
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer import get_processor_token_id
from verl.workers.rollout.replica import TokenOutput

from verl_mas.engines.sampling import converted, engine_errors, sampling_errors
from verl_mas.errors import EngineLost, FaultKind, PromptTooLong, SessionFault, raise_all
from verl_mas.rollout.forgery import Net
from verl_mas.rollout.images import images_of, with_images
from verl_mas.rollout.resumed_reply import ABORTED, keep, merged_versions, reply_limit
from verl_mas.rollout.team_client import TeamClient
from verl_mas.rollout.tool_calls import read_calls
from verl_mas.rollout.truncation import fit
from verl_mas.util.loops import PerLoop, together
from verl_mas.util.text import characters
from verl_mas.verl_.row import ABORTS, EXTRA_FIELDS, MIN_GLOBAL_STEPS, RESPONSE_MASK, VERSIONS
from verl_mas.verl_.types import Fields, Tokenizer
from verl_mas.workflow.client import Continuation, Generation, Message, Request, ToolCall
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.marks import marks_in, marks_of, without_marks

Borrowed: TypeAlias = Callable[..., Any]
# Counts in the extra fields of a reply. The extra fields of a row have the sums of these counts over its replies.
ADDED = (*SPEC_DECODE_EXTRA_KEYS, ABORTS)
# Tokenizer threads compete with the event loop. With two threads, and one prompt at a time, the loop stays responsive
# when thousands of sessions start together.
_TOKENS = ThreadPoolExecutor(2, thread_name_prefix="tokens")
_PROMPT = PerLoop(lambda: asyncio.Semaphore(1))


@dataclass(frozen=True, kw_only=True)
class VerlGeneration(Generation):
    """A generation of a policy that verl serves. Its tokens are arrays, because a session keeps them until it ends, and
    lists take six times the memory."""

    output: AgentLoopOutput  # verl's record of the whole row, without the tokens


_NO_TOKENS: Fields = {"prompt_ids": [], "response_ids": [], RESPONSE_MASK: [], "response_logprobs": None}


def output_of(generation: Generation, form: Callable[[Sequence[float]], object] = list) -> AgentLoopOutput:
    """Return verl's record of a generation, with tokens converted by `form`. Only policies that verl serves have
    records."""
    assert isinstance(generation, VerlGeneration), f"{type(generation).__name__} has tokens and no output"
    log_probs = generation.log_probs
    tokens = {
        "prompt_ids": form(generation.prompt_ids),
        "response_ids": form(generation.response_ids),
        RESPONSE_MASK: form(generation.response_mask),
        "response_logprobs": None if log_probs is None else form(log_probs),
    }
    return generation.output.model_copy(update=tokens)


@dataclass
class Model:
    """One policy's tokenizer and processor, and verl's methods that use them on a row."""

    tokenizer: Tokenizer
    processor: object
    hf_model_type: str | None
    mm_processor_kwargs: object
    _numbers: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def least_tokens(self, messages: Sequence[Message]) -> int:
        """Return a lower bound of the number of tokens in messages. It is computed without tokenizing, which would take
        minutes and gigabytes for a text of megabytes."""
        return -(-characters(messages) // self._longest_token)

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def marks(self) -> re.Pattern[str]:
        return marks_of(self.tokenizer)

    @cached_property
    def net(self) -> Net:
        ids = map(self.tokenizer.convert_tokens_to_ids, marks_in(self.tokenizer))
        return Net(frozenset(token for token in ids if token is not None and token != self.tokenizer.unk_token_id))

    @cached_property
    def placeholders(self) -> frozenset[int]:
        """Tokens that stand for an image, a video or audio. If such a token were sampled in a reply, it would refer to
        media that the row lacks."""
        found = (get_processor_token_id(self.processor, kind) for kind in ("image", "video", "audio"))
        return frozenset(token for token in found if token is not None)

    def shared(self, ids: Iterable[int]) -> list[int]:
        """Return the same tokens as shared integers, so that prompts that wait for an engine take a fifth of the
        memory."""
        return [self._numbers.setdefault(token, token) for token in ids]

    # Methods borrowed from verl's worker. They read only the fields above.
    _get_mm_processor_kwargs: ClassVar[Borrowed] = AgentLoopWorker._get_mm_processor_kwargs  # noqa: SLF001
    compute_multi_modal_inputs: ClassVar[Borrowed] = AgentLoopWorker._compute_multi_modal_inputs  # noqa: SLF001
    compute_position_ids: ClassVar[Borrowed] = AgentLoopWorker._compute_position_ids  # noqa: SLF001


class TokenClient(Protocol):
    """Client of an engine without verl's servers, such as an engine in this process. Cancelling a call of `generate`
    ends its request."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Fields, **media: object
    ) -> TokenOutput: ...


class VerlPolicy:
    """An LLMClient over verl's server client. `config` is the policy's own view of the configuration."""

    def __init__(self, config: DictConfig, client: TeamClient | TokenClient, model: Model, dataset_cls: type):
        self.config, self.model, self.client = config, model, client
        self._dataset_cls = dataset_cls
        self._loops: dict[str, ToolAgentLoop] = {}

    @cached_property
    def _rollout(self) -> DictConfig:
        # Convert to verl's dataclass, which has the same fields. Access to the DictConfig would take a seventh of the
        # worker's time.
        return cast(DictConfig, omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout))

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        request, forged = await without_marks(request, self.model.marks)
        request = await with_images(request, reads=self.model.processor is not None)
        return [replace(reply, forged_tokens=forged) for reply in await self._generate(request, n)]

    async def _generate(self, request: Request, n: int) -> list[Generation]:
        loop = self._loop(request)
        if request.continues is not None and request.continues.generation.full:
            return [_empty_reply(request.continues)] * n
        try:
            row = await self._row(loop, request)
            branches = range(request.branch, request.branch + n)
            return await together([partial(self._sample, loop, request, row, branch) for branch in branches])
        except ray.exceptions.RayActorError as error:
            raise EngineLost(f"the engine that served agent {request.agent} is gone: {error}") from error

    def _loop(self, request: Request) -> ToolAgentLoop:
        """Return verl's agent loop, used for tokens, media and tool calls. There is one loop for each combination of
        chat-template settings."""
        key = json.dumps(dict(request.chat_template_kwargs), sort_keys=True)
        if key not in self._loops:
            data = self.config.data
            kwargs = {**(data.get("apply_chat_template_kwargs") or {}), **request.chat_template_kwargs}
            merged = OmegaConf.merge(data, {"apply_chat_template_kwargs": kwargs})
            self._loops[key] = ToolAgentLoop(
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.client,
                tokenizer=self.model.tokenizer,
                processor=self.model.processor,
                dataset_cls=self._dataset_cls,
                data_config=DictConfigWrap(cast(DictConfig, merged)),
                hf_model_type=self.model.hf_model_type,
            )
        return self._loops[key]

    def sampling(self, request: Request) -> Fields:
        """Return the sampling parameters that verl's worker would use, overridden by the settings of the request."""
        rollout = self._rollout
        kwargs = rollout.val_kwargs if request.validate else rollout
        params = {
            "temperature": kwargs.temperature,
            "top_p": kwargs.top_p,
            "top_k": kwargs.top_k or -1,
            "repetition_penalty": 1.0,
            "logprobs": rollout.calculate_log_probs,
        }
        if request.greedy:
            apply_greedy_sampling_params(params)
        where = f"sampling of agent {request.agent}"
        raise_all(sampling_errors(request.sampling, rollout.name, where))
        raise_all(engine_errors(request.sampling, rollout, where))
        return converted({**params, **request.sampling}, where)

    async def _row(self, loop: ToolAgentLoop, request: Request) -> AgentLoopOutput:
        """Return the row to which the reply is added: a new row, or the continued row with the new messages."""
        if request.continues is not None:
            return await self._continued(loop, request, request.continues)
        messages = list(request.messages)
        media = await loop.process_multi_modal_info(messages)
        loop._assert_mm_supported(bool(media))  # noqa: SLF001
        mm_inputs: Fields = {}
        ids = await self._initial_tokens(loop, request, media, mm_inputs)
        return AgentLoopOutput.model_construct(
            **_new_row(ids),
            multi_modal_data=media,
            mm_processor_kwargs=loop._get_mm_processor_kwargs(media.get("audios")),  # noqa: SLF001
            mm_processor_output=loop.build_sglang_video_payload(media.get("videos"), mm_inputs),
        )

    async def _initial_tokens(
        self, loop: ToolAgentLoop, request: Request, media: Fields, mm_inputs: Fields
    ) -> list[int]:
        build = partial(
            loop.continuous_token_builder.build_initial_tokens,
            tools=_schemas(request),
            mm_inputs_out=mm_inputs,
            **media,
        )
        limit, ids = self._limit(request), list[int]()

        def count(messages: Sequence[Message]) -> int:
            nonlocal ids
            if not media and (least := self.model.least_tokens(messages)) > limit:
                return least
            ids = build(list(messages))
            return len(ids)

        def fitted_ids() -> list[int]:
            # Placeholders of media must stay aligned with their features, so a prompt with media is never shortened.
            rule = "error" if media else request.truncation
            fitted = fit(request.messages, limit, rule, count, request.opening)
            found = ids if fitted == list(request.messages) else build(fitted)
            if not media:
                tools = list(request.tools)
                self.model.net.check(fitted, tools, lambda texts, tools: build(texts, tools=tools or None), found)
            return self.model.shared(found)

        if media:  # processing media is slow, so it runs in a thread of the default pool
            return await asyncio.to_thread(fitted_ids)
        async with _PROMPT.here():
            return await asyncio.get_running_loop().run_in_executor(_TOKENS, fitted_ids)

    async def _continued(self, loop: ToolAgentLoop, request: Request, continues: Continuation) -> AgentLoopOutput:
        previous = output_of(continues.generation)
        known, new = list(request.messages[: continues.known]), request.messages[continues.known :]
        images = images_of(new)
        longest = self._rollout.prompt_length + self._rollout.response_length
        if not images and (least := self.model.least_tokens(new)) > longest:
            raise SessionFault(FaultKind.LIMIT, f"messages of at least {least} tokens do not fit in a row of {longest}")
        loop._assert_mm_supported(bool(images))  # noqa: SLF001
        merged, mask, log_probs = await loop.ct_merge_context_msg(
            known,
            list(request.messages),
            [*previous.prompt_ids, *previous.response_ids],
            previous.response_mask,
            previous.response_logprobs,
            tools=_schemas(request),
        )
        if not images:

            def render(added: list[Message], tools: list[JsonObject]) -> Sequence[int]:
                build = loop.continuous_token_builder.tokenize_context_incremental_messages
                return cast("Sequence[int]", build(known, [*known, *added], tools=tools or None))

            # The new messages must have no special tokens except those of their turns.
            check = partial(self.model.net.check, list(new), list(request.tools), render)
            await asyncio.get_running_loop().run_in_executor(_TOKENS, check)
        ids = self.model.shared(merged.token_ids)
        if continues.row is not None:
            row = _tokens(ids, mask, log_probs)
        elif len(ids) <= self._limit(request):
            row = _new_row(ids)
        else:
            length = f"a conversation of {len(ids)} tokens"
            raise PromptTooLong(FaultKind.LIMIT, f"{length} does not fit in a prompt of {self._limit(request)}")
        media = previous.multi_modal_data or {}
        media = {**media, "images": [*(media.get("images") or ()), *images]} if images else media
        return previous.model_copy(update={**row, "multi_modal_data": media})

    async def _sample(self, loop: ToolAgentLoop, request: Request, row: AgentLoopOutput, branch: int) -> Generation:
        left = self._rollout.response_length - len(row.response_ids)
        if left <= 0:
            assert request.continues is not None
            return _empty_reply(request.continues)
        params = self.sampling(request)
        # In some of the formats that verl's parsers read, certain tokens end a tool call, so the reply must stop there.
        ends = {*self.model.placeholders, *((request.tools and loop.tool_parser.stop_token_ids) or ())}
        if ends:
            params["stop_token_ids"] = sorted(ends.union(params.get("stop_token_ids") or ()))
        wanted = params.get("max_tokens")
        # A new row without `max_tokens` is limited by the engine.
        if wanted is not None or row.response_ids:
            params["max_tokens"] = left if wanted is None else min(wanted, left)
        ids, media = _ids(row), row.multi_modal_data or {}
        started = asyncio.get_running_loop().time()
        answer = await self.client.generate(
            request_id=self._request_id(request, branch),
            prompt_ids=ids,
            sampling_params=params,
            image_data=media.get("images"),
            audio_data=media.get("audios"),
            video_data=media.get("videos"),
            mm_processor_output=row.mm_processor_output,
            mm_processor_kwargs=row.mm_processor_kwargs,
        )
        seconds = asyncio.get_running_loop().time() - started
        if answer.stop_reason in ABORTED and not answer.token_ids:
            raise SessionFault(FaultKind.REFUSED, "the engine aborted the request")
        if self.model.placeholders.intersection(answer.token_ids[-1:]):
            keep(answer, len(answer.token_ids) - 1, len(ids))
            if not answer.token_ids:
                raise SessionFault(FaultKind.REFUSED, "the reply begins with a token that stands for an image")
        output = await self._output(loop, row, ids, answer, seconds)
        sampled = answer.token_ids[:left]
        decode = partial(self.model.tokenizer.decode, sampled, skip_special_tokens=True)
        text = await asyncio.get_running_loop().run_in_executor(_TOKENS, decode)
        calls: Sequence[ToolCall] = ()
        stop_reason = self._stop_reason(answer, len(ids), params)
        # A reply that was cut has no end of turn, so results of calls cannot follow it.
        if request.tools and stop_reason != "length":
            content, calls = await read_calls(loop, request, sampled)
            text = content if calls else text
        return VerlGeneration(
            prompt_ids=array("i", output.prompt_ids),
            response_ids=array("i", output.response_ids),
            response_mask=array("b", output.response_mask),
            log_probs=None if output.response_logprobs is None else array("d", output.response_logprobs),
            output=output.model_copy(update=_NO_TOKENS),
            text=text,
            stop_reason=stop_reason,
            sampled=len(sampled),
            # Engines report the log-probs of greedy decoding (temperature 0) at temperature 1.
            temperature=float(params["temperature"]) or 1.0,
            tool_calls=calls,
            full=len(output.response_ids) >= self._rollout.response_length,
            versions=answer.extra_fields.get(VERSIONS, ()),
            aborts=answer.extra_fields.get(ABORTS, 0),
        )

    async def _output(
        self, loop: ToolAgentLoop, row: AgentLoopOutput, ids: list[int], answer: TokenOutput, seconds: float
    ) -> AgentLoopOutput:
        """Return the row with the answer, cut to the maximal length. `ids`: the tokens of the row without the
        answer."""
        merged, mask, log_probs = await loop.ct_merge_assistant_token(
            ids,
            answer.token_ids,
            row.response_mask,
            (row.response_logprobs or []) if row.response_logprobs or answer.log_probs else None,
            assistant_logprobs=answer.log_probs or None,
        )
        longest = self._rollout.response_length
        end = len(merged.token_ids) - len(mask) + longest
        update = {
            **_tokens(merged.token_ids[:end], mask[:longest], log_probs[:longest] if log_probs else None),
            "routed_experts": None if answer.routed_experts is None else answer.routed_experts[:end],
            "num_turns": row.num_turns + 2,
            "metrics": _metrics(row.metrics, seconds, answer.num_preempted),
            EXTRA_FIELDS: _extra_fields(row.extra_fields, answer.extra_fields),
        }
        return row.model_copy(update=update)

    def _stop_reason(self, answer: TokenOutput, prompt: int, params: Fields) -> str | None:
        """Return the stop reason of a reply. verl's vLLM server reports `completed` both for replies that ended and for
        replies that were cut, so this method distinguishes them."""
        if answer.stop_reason != "completed" or not answer.token_ids:
            return answer.stop_reason
        limit = reply_limit(self._rollout, params, prompt)
        ended = answer.token_ids[-1] == self.model.tokenizer.eos_token_id
        return "length" if len(answer.token_ids) >= limit and not ended else "stop"

    def _limit(self, request: Request) -> int:
        longest: int = self._rollout.prompt_length
        return min(longest, request.max_prompt_length or longest)

    def _request_id(self, request: Request, branch: int) -> str:
        """Return the same id for an agent's acts in a session, so that they reach the engine that has their prefix
        cached."""
        sticky = f"{request.session}_{request.agent}"
        # Under full determinism, verl passes the id on to the engine, which needs a unique id for each request. No id
        # may be a prefix of another id, because SGLang aborts all requests whose ids begin with a given id.
        unique = f"{request.line}_{request.instance}_{request.turn}_{branch}_{request.round}_"
        return sticky + (unique if self._rollout.get("full_determinism", False) else "")


def _schemas(request: Request) -> list[JsonObject]:
    """Return the tools for the chat template. Without tools, return None, because with an empty list some templates
    write a prompt as if there were tools. verl accepts None, but its type hints do not."""
    return cast("list[JsonObject]", list(request.tools) or None)


def _empty_reply(continues: Continuation) -> Generation:
    """Make the empty reply of a full row: no token is sampled, and the last messages are not added to the row. If the
    reply starts a new row (`continues.row` is None), the new row has no response tokens, because the tokens so far are
    trained in the earlier row."""
    before = continues.generation
    if continues.row is None:
        before = replace(before, response_ids=(), response_mask=(), log_probs=None)
    return replace(before, text="", tool_calls=(), stop_reason="length", sampled=0, full=True, versions=(), aborts=0)


def _tokens(ids: list[int], mask: list[int], log_probs: list[float] | None) -> Fields:
    """Make the fields of a row with these tokens. The last `len(mask)` tokens are its response."""
    split = len(ids) - len(mask)
    return {"prompt_ids": ids[:split], "response_ids": ids[split:], RESPONSE_MASK: mask, "response_logprobs": log_probs}


def _ids(row: AgentLoopOutput) -> list[int]:
    """Return all tokens of a row. The samples of a new row share the list of its prompt."""
    return [*row.prompt_ids, *row.response_ids] if row.response_ids else row.prompt_ids


def _new_row(ids: list[int]) -> Fields:
    return {**_tokens(ids, [], None), "num_turns": 0, "metrics": AgentLoopMetrics(), EXTRA_FIELDS: {}}


def _metrics(before: AgentLoopMetrics, seconds: float, preempted: int | None) -> AgentLoopMetrics:
    """Add a reply to the metrics of its row. As in verl, `num_preempted` is -1 if the engine does not count
    preemptions."""
    counted = before.num_preempted if preempted is None else max(0, before.num_preempted) + preempted
    return AgentLoopMetrics(generate_sequences=before.generate_sequences + seconds, num_preempted=counted)


def _extra_fields(before: Fields, fields: Fields) -> Fields:
    """Add the extra fields of a reply to the extra fields of its row."""
    # verl's single_turn_agent also adds these two empty lists.
    whole = {**fields, "turn_scores": [], "tool_rewards": []}
    whole |= {key: before[key] for key in (MIN_GLOBAL_STEPS,) if key in before}
    whole |= {key: before[key] + fields[key] for key in ADDED if key in before and key in fields}
    if VERSIONS in before and VERSIONS in fields:
        whole[VERSIONS] = merged_versions([*before[VERSIONS], *fields[VERSIONS]])
    return whole
