"""Recorded functions: the operators of a call written down once for each layout, and repeated without Python.

A step of a small model is thousands of small operators, and to find each of them from Python takes about as long as to
run it. A tape has torch's own interpreter of graphs call the same operators in the same order, with none of its
optimisations, so that every bit is the one that the function gives; the first thing done with a tape is to look whether
that is so. While one plays, other threads of Python run.

What a function does must follow from the layout of what it is given: it looks at no value.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode

_log = logging.getLogger(__name__)

MOST_TAPES = 32
"""Layouts of one function that are kept."""

_UNFIT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""What torch says of operators that do other things for other values. Those that draw values show when compared."""

_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
"""Their numbers in graphs, which have no literals of this kind."""

Outputs: TypeAlias = tuple[Tensor, ...]
Function: TypeAlias = Callable[..., Outputs]
Layout: TypeAlias = tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
"""Shape, strides and dtype of every input: what decides which operators a call makes."""


class Value(NamedTuple):
    """A tensor of a tape: from zero on an input or what an operator gave, below zero a constant."""

    number: int


class Call(NamedTuple):
    """An operator.

    Attributes:
        schema: What torch declares of it.
        arguments: One for each that is declared, tensors as values.
        outputs: Numbers of what it gave.
        listed: Whether it gave them as one list.
    """

    schema: Any
    arguments: tuple[Any, ...]
    outputs: tuple[int, ...]
    listed: bool


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that this thread calls while it is entered.

    Tensors that were there before and are no inputs (weights, tables) become constants of the tape, and so does
    whatever depends on nothing else: it is computed now, and not again.
    """

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.constants: list[Tensor] = []
        # Tensors are known by their identity, so each is kept until the tape is whole.
        self._alive: list[Tensor] = list(inputs)
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        self._next = len(inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave ``__torch_dispatch__`` as it is; to exempt it, torch would load its compiler, a second's work."""
        return False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See :class:`TorchDispatchMode`.

        Raises:
            RuntimeError: An operator looks at a value, or what would be a constant changes from call to call.
        """
        kwargs = kwargs or {}
        if operator._can_decompose():  # made of others: those are noted
            with self:
                out = operator.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        schema = operator._schema
        if _looks_at_values(operator, args):
            raise RuntimeError(f"{schema.name} looks at a value")
        out = operator(*args, **kwargs)
        rest = schema.arguments[len(args) :]
        given = (*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest))
        results = out if isinstance(out, list | tuple) else (out,)
        for argument, declared in zip(given, schema.arguments, strict=True):
            if _is_written(declared) and not all(self._is_live(tensor) for tensor in _tensors((argument,))):
                raise RuntimeError(f"{schema.name} writes into a constant")
        if any(self._is_live(tensor) for tensor in _tensors(given)):
            arguments = tuple(self._noted(argument) for argument in given)
            outputs = tuple(self._new(result) for result in results)
            self.calls.append(Call(schema, arguments, outputs, listed=isinstance(out, list)))
        elif torch.Tag.nondeterministic_seeded in operator.tags:
            raise RuntimeError(f"{schema.name} gives no constant")
        else:
            for result in results:
                self.value(result)
        return out

    def value(self, tensor: Tensor) -> Value:
        """What stands for a tensor on the tape."""
        if id(tensor) not in self._numbers:
            self.constants.append(tensor)
            self._know(tensor, -len(self.constants))
        return Value(self._numbers[id(tensor)])

    def _is_live(self, tensor: Tensor) -> bool:
        """Whether a tensor is an input or follows from one; everything else is the same at every call."""
        return self._numbers.get(id(tensor), -1) >= 0

    def _noted(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, list | tuple):
            return [self._noted(each) for each in argument]
        return argument

    def _new(self, tensor: Tensor) -> int:
        if id(tensor) not in self._numbers:  # an operator that writes into an argument gives that argument back
            self._know(tensor, self._next)
            self._next += 1
        return self._numbers[id(tensor)]

    def _know(self, tensor: Tensor, number: int) -> None:
        self._alive.append(tensor)
        self._numbers[id(tensor)] = number


def _is_written(argument: Any) -> bool:
    """Whether an operator writes into a declared argument."""
    return argument.alias_info is not None and argument.alias_info.is_write


def _looks_at_values(operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether what an operator does, not only what it gives, depends on values."""
    if operator is torch.ops.aten.index.Tensor:  # only where it is told to choose
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1:]))
    return not _UNFIT.isdisjoint(operator.tags)


def _tensors(arguments: tuple[Any, ...]) -> list[Tensor]:
    listed = (argument if isinstance(argument, list | tuple) else (argument,) for argument in arguments)
    return [each for some in listed for each in some if isinstance(each, Tensor)]


class GraphBuilder:
    """Writes calls into one of torch's graphs: first the inputs of the function, then the constants, are its inputs.

    Args:
        inputs: How many inputs the function has.
        constants: How many constants.
    """

    def __init__(self, inputs: int, constants: int) -> None:
        self.graph: Any = torch._C.Graph()
        self._values: dict[int, Any] = {}
        self._literals: dict[tuple[type, str], Any] = {}
        for number in (*range(inputs), *range(-1, -constants - 1, -1)):
            self._values[number] = self.graph.addInput()
            self._values[number].setType(torch._C.TensorType.get())

    def append(self, call: Call) -> None:
        """Call an operator behind those before."""
        declared = zip(call.arguments, call.schema.arguments, strict=True)
        arguments = [self._argument(argument, each.type) for argument, each in declared]
        results = self._insert(call.schema.name, arguments, [each.type for each in call.schema.returns])
        if call.listed:
            results = self._insert("prim::ListUnpack", results, [torch._C.TensorType.get()] * len(call.outputs))
        self._values.update(zip(call.outputs, results, strict=True))

    def finish(self, outputs: list[Value]) -> Any:
        """The function of the whole graph, which gives a tuple."""
        values = [self._values[output.number] for output in outputs]
        tensor = torch._C.TensorType.get()
        (whole,) = self._insert("prim::TupleConstruct", values, [torch._C.TupleType([tensor] * len(values))])
        self.graph.registerOutput(whole)
        self.graph.lint()
        return torch._C._create_function_from_graph("tape", self.graph)

    def _argument(self, argument: Any, declared: Any) -> Any:
        if isinstance(argument, Value):
            return self._values[argument.number]
        if isinstance(argument, list) and all(each is None or isinstance(each, Value) for each in argument):
            # Literals can be no lists of tensors, and no empty list has a type of its own.
            if isinstance(declared, torch._C.OptionalType):
                declared = declared.getElementType()
            return self._insert("prim::ListConstruct", [self._argument(each, None) for each in argument], [declared])[0]
        if isinstance(argument, torch.memory_format):
            argument = _MEMORY_FORMATS[argument]
        key = type(argument), repr(argument)
        if key not in self._literals:
            self._literals[key] = self.graph.insertConstant(argument)
        return self._literals[key]

    def _insert(self, kind: str, arguments: list[Any], types: list[Any]) -> list[Any]:
        node = self.graph.insertNode(self.graph.create(kind, arguments, len(types)))
        results = list(node.outputs())
        for result, kind_of_result in zip(results, types, strict=True):
            result.setType(kind_of_result)
        return results


class Tape:
    """The operators of one call, to be repeated with other inputs of the same layout.

    Args:
        recorder: What it noted of the call.
        inputs: How many inputs the function has.
        outputs: What it gave.
    """

    def __init__(self, recorder: Recorder, inputs: int, outputs: Outputs) -> None:
        given = [recorder.value(output) for output in outputs]
        builder = GraphBuilder(inputs, len(recorder.constants))
        for call in recorder.calls:
            builder.append(call)
        self._function = builder.finish(given)
        self._constants = tuple(recorder.constants)

    def play(self, inputs: tuple[Tensor, ...]) -> Outputs:
        """What the function gives for these inputs."""
        # Optimised, traced steps of this network gave other bits. The switch is this thread's own.
        with optimized_execution(False):
            outputs: Outputs = self._function(*inputs, *self._constants)
        return outputs


class Recorded:
    """A function of tensors on a CPU that is recorded when it is called with inputs of some layout.

    Any thread; one that meets a layout while another records it waits for the tape. Of the layouts the one that was
    not used for longest is forgotten first.

    Args:
        function: Takes tensors and gives a tuple of tensors. It may write into its inputs if, called again with the
            same, it writes the same.
        after: Calls with a layout that go before the one that records it.
        most: Layouts that are kept.
    """

    def __init__(self, function: Function, *, after: int = 0, most: int = MOST_TAPES) -> None:
        self._function = function
        self._after = after
        self._most = most
        self._calls: OrderedDict[Layout, int] = OrderedDict()
        self._tapes: OrderedDict[Layout, Tape] = OrderedDict()
        self._lock = threading.Lock()
        self._given_up = False

    @property
    def kept(self) -> int:
        """Layouts that are recorded."""
        return len(self._tapes)

    def __call__(self, *inputs: Tensor) -> Outputs:
        """What the function gives."""
        if self._given_up:
            return self._function(*inputs)
        layout = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs)
        with self._lock:
            tape = self._tapes.get(layout)
            if tape is not None:
                self._tapes.move_to_end(layout)
            elif self._may_record(layout):
                return self._record(layout, inputs)
        return self._function(*inputs) if tape is None else tape.play(inputs)

    def _may_record(self, layout: Layout) -> bool:
        """Whether a layout has been met often enough; counts this time."""
        calls = self._calls.pop(layout, 0)
        if calls >= self._after:
            return True
        while len(self._calls) >= self._most:
            self._calls.popitem(last=False)
        self._calls[layout] = calls + 1
        return False

    def _record(self, layout: Layout, inputs: tuple[Tensor, ...]) -> Outputs:
        """Call the function and keep its tape, if that gives the same; else the function is called from now on."""
        if self._given_up or len({id(tensor) for tensor in inputs}) < len(inputs):
            return self._function(*inputs)  # while this waited; or what is one tensor here may be two at the next call
        recorder = Recorder(inputs)
        try:
            with recorder:
                outputs = self._function(*inputs)
            tape = Tape(recorder, len(inputs), outputs)
            if not all(_same_bits(one, other) for one, other in zip(outputs, tape.play(inputs), strict=True)):
                raise RuntimeError("a tape gives other bits than its function")
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:  # torch promises nothing of its graphs
            self._given_up = True
            self._tapes.clear()
            cause = str(error).partition("\n")[0]
            _log.warning("operators cannot be recorded here and are called one by one: %s", cause)
            return self._function(*inputs)
        while len(self._tapes) >= self._most:
            self._tapes.popitem(last=False)
        self._tapes[layout] = tape
        return outputs


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the bit; what is no number is equal to itself that way."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
