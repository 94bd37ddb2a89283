"""The exceptions nodedrop raises, all meant to be read by the person who called it.

    NodeDropError
    ├── InputError       an argument is wrong; the message says which and what was expected
    ├── TraceError       the model cannot be turned into a graph; says where and what to do
    └── CutError         a cut was refused or rolled back; model and optimizer are as before
        └── CollapseError    it would leave a layer without any unit
"""


class NodeDropError(Exception):
    """Base of all errors raised by nodedrop."""


class InputError(NodeDropError, ValueError):
    """An argument is wrong."""


class TraceError(NodeDropError):
    """The model cannot be traced."""


class CutError(NodeDropError):
    """A cut was refused or rolled back; model and optimizer are as before."""


class CollapseError(CutError):
    """A cut would empty a layer."""
