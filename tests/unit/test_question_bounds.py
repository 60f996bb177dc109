"""A question is held against the graph before anything is computed; arrays travel as they were; what an orchestrator says of the model is heard."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from call_rig import GivenCall
from stages_rig import FORK, LINE

from dcnr.client import Orchestrators
from dcnr.errors import Corrupt, DcnrError, InvalidInput, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.sdk.asking import Ask, answer_of, request_of
from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage, StageInput
from dcnr.tensor import encode
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.access import STRANGERS_ASK, Caller, CallLimits
from orchestrator.questions import MAX_INPUT_BYTES, Question, check_readout, question_of, version_of
from orchestrator.view import JobFacts

BATCH = 8


def facts(stages: tuple[Stage, ...] = LINE) -> JobFacts:
    graph = model_pb2.ModelGraph(train=model_pb2.TrainSpec(batch_size=BATCH))
    return JobFacts(model_pb2.JobRequest(), "r" * 64, graph, b"", stages, ())


def samples(count: int = 2) -> Any:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4)


def test_a_question_reaches_every_source_with_its_bytes() -> None:
    request = request_of(samples(), Ask("toy", deadline_s=3.0, redundancy=2))
    question = question_of(request, facts())
    assert (question.num_samples, question.exit, question.deadline_s, question.num_ways) == (2, "c", 3.0, 2)
    assert bytes(question.inputs["a"].payload) == samples().tobytes()
    both = question_of(request, facts(FORK))
    assert set(both.inputs) == {"a", "b"}
    apart = request_of({"a": samples(), "b": 2 * samples()}, Ask())
    assert bytes(question_of(apart, facts(FORK)).inputs["b"].payload) == (2 * samples()).tobytes()


@pytest.mark.parametrize(
    ("declared", "exact", "codec"),
    [
        ("int8", False, "int8"),
        ("bf16", False, "bf16"),
        ("int8", True, "raw"),
        ("auto", False, "raw"),
        ("raw", False, "raw"),
        ("", False, "raw"),
    ],
)
def test_outputs_go_in_the_codec_that_the_graph_declares(declared: str, exact: bool, codec: str) -> None:
    job = facts()
    job.graph.train.codec = declared
    assert question_of(request_of(samples(), Ask("toy", exact=exact)), job).codec == codec


@pytest.mark.parametrize(
    ("inputs", "asked", "code"),
    [
        (samples().astype(np.int64), Ask(), "bad_dtype"),
        (samples()[0], Ask(), "bad_shape"),
        (samples()[:, :3], Ask(), "bad_shape"),
        (samples()[:0], Ask(), "bad_shape"),
        (samples(BATCH + 1), Ask(), "bad_shape"),
        (np.full((2, 4), np.inf, np.float32), Ask(), "bad_input"),
        ({"b": samples()}, Ask(), "bad_inputs"),
        ({"a": samples(), "x": samples()}, Ask(), "bad_inputs"),
        (np.zeros((1, MAX_INPUT_BYTES // 4 + 1), np.float32), Ask(), "input_too_large"),
        (samples(), Ask(exit="x"), "no_such_exit"),
        (samples(), Ask(deadline_s=121.0), "bad_deadline"),
        (samples(), Ask(deadline_s=float("nan")), "bad_deadline"),
        (samples(), Ask(redundancy=5), "bad_redundancy"),
        (samples(), Ask(weights="live", redundancy=2), "bad_redundancy"),
    ],
)
def test_what_does_not_fit_the_graph_is_refused(inputs: Any, asked: Ask, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        question_of(request_of(inputs, asked), facts())
    assert caught.value.code == code


def test_inputs_without_names_are_told_so() -> None:
    request = request_of({"a": samples(), "x": samples()}, Ask())
    for item in request.inputs:
        item.vnode = ""
    with pytest.raises(InvalidInput, match="inputs are wanted for a, and 2 of 2 have no name"):
        question_of(request, facts())


def test_a_version_is_named_by_a_digest() -> None:
    named = orchestrator_pb2.ForwardRequest(weights=orchestrator_pb2.WEIGHTS_NAMED, manifest_digest="a" * 64)
    assert version_of(named) == "a" * 64
    assert version_of(orchestrator_pb2.ForwardRequest(manifest_digest="00")) == "", "whoever names no weights is answered by any"
    for wrong, code in (("", "no_manifest_named"), ("00", "bad_id"), ("A" * 64, "bad_id")):
        named.manifest_digest = wrong
        with pytest.raises(InvalidInput) as caught:
            version_of(named)
        assert caught.value.code == code


def test_bytes_that_are_not_the_shape_are_refused() -> None:
    request = request_of(samples(), Ask())
    request.inputs[0].data = request.inputs[0].data[:-1]
    with pytest.raises(InvalidInput):
        question_of(request, facts())
    with pytest.raises(InvalidInput):
        request_of(samples(), Ask(weights="best"))
    with pytest.raises(InvalidInput):
        request_of(np.array(["text"]), Ask())


def stages_of_texts(*sources: int, length: int, num_classes: int = 256) -> tuple[Stage, ...]:
    """One exit that reads sequences of bytes of these lengths and says what follows each of so many places."""
    after = TensorSpec("float32", (length, 4))
    read = [
        Stage(
            f"s{number}", "byte_embedding", {}, (INPUT,), (TensorSpec("uint8", (one,)),), (), (StageInput(INPUT, TensorSpec("uint8", (one,))),), "", {},
            "", {}, after, TensorSpec("uint8", (length,)), num_classes,
        )
        for number, one in enumerate(sources)
    ]  # fmt: skip
    inputs = tuple(StageInput(one.id, after) for one in read)
    return (*read, replace(read[0], id="out", inputs=inputs))


def asked_of(*shapes: tuple[int, ...], draft: int = 0, last: int = 0) -> Question:
    inputs = {f"s{number}": encode(np.zeros(shape, np.uint8), "raw") for number, shape in enumerate(shapes)}
    return Question(inputs, shapes[0][0], "out", False, 1.0, 1, draft, last)


def fits(stages: tuple[Stage, ...], question: Question, *shape: int, num_drafted: int = 0, dtype: str = "float32") -> bool:
    try:
        check_readout(stages, stages[-1].id, question, num_drafted, dtype, shape)
    except RemoteFault:
        return False
    return True


def test_an_exit_answers_with_a_score_for_each_class_and_nothing_else() -> None:
    line = tuple(replace(stage, target=TensorSpec("int64", ())) for stage in LINE)
    question, classes = question_of(request_of(samples(2), Ask("toy")), facts(line)), line[-1].num_classes
    assert fits(line, question, 2, classes)
    for shape in ((), (2,), (2, classes + 1), (3, classes), (2, classes, 1), (2, 1, classes), (classes, 2), (2, 0)):
        assert not fits(line, question, *shape), shape
    for dtype in ("int32", "float16", "", "x" * 1000):
        assert not fits(line, question, 2, classes, dtype=dtype)


def test_an_exit_of_sequences_answers_for_the_places_that_came() -> None:
    one = stages_of_texts(8, length=8)
    for num_places in (1, 5, 8):
        assert fits(one, asked_of((2, num_places)), 2, num_places, 256)
    for shape in ((2, 4, 256), (2, 9, 256), (2, 256, 5), (2, 5, 255), (2, 5), (1, 5, 256), (2, 0, 256)):
        assert not fits(one, asked_of((2, 5)), *shape), shape
    drafted = asked_of((1, 3), draft=4, last=5)
    assert fits(one, drafted, 1, 5, 256, num_drafted=4)
    assert not fits(one, drafted, 1, 7, 256, num_drafted=4)
    assert not fits(one, drafted, 1, 4, 256, num_drafted=3), "who drafts bytes always can"
    assert fits(stages_of_texts(8, length=8, num_classes=300), drafted, 1, 5, 300, num_drafted=3), "but for tokens that are none"
    assert not fits(one, drafted, 1, 5, 256, num_drafted=5)


def test_an_exit_that_has_more_places_than_came_answers_for_any_number_up_to_these() -> None:
    for stages, question in (
        (stages_of_texts(8, 8, length=16), asked_of((1, 3), (1, 4))),
        (stages_of_texts(4, length=16), asked_of((1, 3))),
    ):
        assert all(fits(stages, question, 1, num_places, 256) for num_places in range(1, 17))
        assert not fits(stages, question, 1, 17, 256)
        assert not fits(stages, question, 1, 0, 256)


def test_an_answer_is_the_array_that_was_sent_or_is_refused() -> None:
    rows = samples(3)
    response = orchestrator_pb2.ForwardResponse(
        output=orchestrator_pb2.NamedTensor(dtype="float32", shape=rows.shape, data=rows.tobytes()), exit="b", degraded=True
    )
    answer = answer_of(response)
    np.testing.assert_array_equal(answer.output, rows)
    assert (answer.exit, answer.degraded) == ("b", True)
    response.output.shape.append(2)
    with pytest.raises(Corrupt):
        answer_of(response)


@pytest.mark.parametrize("is_attached", [False, True])
def test_strangers_of_one_subnet_attached_or_not_share_a_rate_and_who_is_listed_has_none(is_attached: bool) -> None:
    limits, stranger = CallLimits(), Caller("s", maintainer=False, orchestrator=False, pnode=is_attached)
    for _ in range(int(STRANGERS_ASK.burst)):
        limits.check(stranger, "net", 0.0)
    with pytest.raises(Unavailable) as caught:
        limits.check(Caller("t", maintainer=False, orchestrator=False, pnode=is_attached), "net", 0.0)
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after_s > 0
    limits.check(stranger, "elsewhere", 0.0)
    assert not limits.exempts(stranger), "and leaves the other places"
    known = CallLimits(["s"])
    for _ in range(2 * int(STRANGERS_ASK.burst)):
        known.check(stranger, "net", 0.0)
    limits.check(Caller("m", maintainer=True, orchestrator=False, pnode=False), "net", 0.0)


@pytest.mark.parametrize(
    ("errors", "code", "num_calls"),
    [
        ([Unavailable("", code="no_server"), Unavailable("", code="unreachable")], "no_server", 2),
        ([Unavailable("", code="unreachable"), Unavailable("", code="unreachable")], "no_orchestrator", 2),
        ([TimedOut("", code="deadline_exceeded"), Unavailable("", code="no_server")], "deadline_exceeded", 1),
    ],
)
def test_what_orchestrators_say_of_the_model_is_heard(errors: list[DcnrError], code: str, num_calls: int) -> None:
    called: list[str] = []

    class Connection:
        closed, channel = False, None

        async def call(self, _method: Any, _request: Any, timeout_s: float) -> Any:
            called.append("one")
            raise errors[len(called) - 1]

        async def close(self) -> None:
            pass

    class Dialer:
        async def connect(self, _node: str, _addresses: Any) -> Any:
            return Connection()

    class Stub:
        def __init__(self, _channel: Any) -> None:
            self.Forward = None

    async def scenario() -> None:
        dialer: Any = Dialer()
        known: Any = lambda: [("1" * 40, ()), ("2" * 40, ())]  # noqa: E731
        with pytest.raises(DcnrError) as caught:
            await Orchestrators(dialer, known).call(Stub, "Forward", None)
        assert caught.value.code == code
        assert len(called) == num_calls

    asyncio.run(scenario())


class Calls:
    """Two orchestrators, each of which answers a stream with these: messages, or the error in which it ends."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers, self.called = list(answers), list[str]()
        self.closed = list[str]()

    async def connect(self, node: str, _addresses: Any) -> Any:
        return Called(self, node)


class Called:
    """A connection that counts as its own stub."""

    closed = False

    def __init__(self, calls: Calls, node: str) -> None:
        self.calls, self.node, self.channel = calls, node, self

    async def fresh_metadata(self) -> Any:
        return ()

    async def close(self) -> None:
        self.calls.closed.append(self.node[:1])

    def watch(self, _request: Any, **_: Any) -> GivenCall:
        return GivenCall(self._watched())

    async def _watched(self) -> Any:
        self.calls.called.append(self.node[:1])
        for item in self.calls.answers[int(self.node[:1])]:
            if isinstance(item, grpc.StatusCode):
                raise grpc.aio.AioRpcError(item, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")
            yield item


@pytest.mark.parametrize(
    ("first", "heard", "called"),
    [
        (["a", "b"], ["a", "b"], ["0"]),
        ([grpc.StatusCode.UNAVAILABLE], ["c"], ["0", "1"]),
        (["a", grpc.StatusCode.UNAVAILABLE], ["a", Unavailable], ["0"]),
        ([grpc.StatusCode.INVALID_ARGUMENT], [InvalidInput], ["0"]),
        ([grpc.StatusCode.DEADLINE_EXCEEDED], [TimedOut], ["0"]),
    ],
)
def test_a_stream_that_an_orchestrator_never_begins_is_asked_of_the_next(
    first: list[Any], heard: list[Any], called: list[str]
) -> None:
    """What has begun is not begun again: a text would be told twice."""
    calls: Any = Calls(first, ["c"])
    found: list[Any] = []

    async def scenario() -> None:
        orchestrators = Orchestrators(calls, lambda: [(NodeId(str(number) * 40), ()) for number in range(2)])
        try:
            async for message in orchestrators.stream(lambda channel: channel, "watch", None, timeout_s=1.0):
                found.append(message)
        except DcnrError as error:
            found.append(type(error))
        await orchestrators.close()

    asyncio.run(scenario())
    assert found == heard
    assert calls.called == called
    assert calls.closed == called, "a connection that broke is not used again, and all are closed in the end"


def test_a_call_that_the_first_cannot_answer_is_answered_by_the_next_and_that_one_is_asked_first_from_then_on() -> None:
    called: list[str] = []

    class One:
        closed, channel = False, None

        def __init__(self, node: str) -> None:
            self.node = node

        async def call(self, _method: Any, _request: Any, timeout_s: float) -> Any:
            called.append(self.node[:1])
            return self.node

        async def close(self) -> None:
            pass

    class Dialer:
        async def connect(self, node: str, _addresses: Any) -> Any:
            if node.startswith("0"):
                called.append("dead")
                raise Unavailable("refused", code="unreachable")
            return One(node)

    class Stub:
        def __init__(self, _channel: Any) -> None:
            self.GetStatus = None

    async def scenario() -> None:
        dialer: Any = Dialer()
        orchestrators = Orchestrators(dialer, lambda: [(NodeId(str(number) * 40), ()) for number in range(3)])
        assert await orchestrators.answered(Stub, "GetStatus", None) == (NodeId("1" * 40), "1" * 40)
        assert await orchestrators.call(Stub, "GetStatus", None) == "1" * 40

    asyncio.run(scenario())
    assert called == ["dead", "1", "1"]
