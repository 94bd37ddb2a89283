"""The commands, as they are called."""

# A shell that runs the tests in the background tells them to ignore Ctrl-C; a command under test must hear it.
LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from nodedrop.cli import main; main()"
)
