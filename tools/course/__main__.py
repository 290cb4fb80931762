"""`python -m course COMMAND`: build, grade, gradescope, protections."""

from __future__ import annotations

import sys

_COMMANDS = ("build", "grade", "gradescope", "protections")


def main(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    if not arguments or arguments[0] not in _COMMANDS:
        print(f"python -m course COMMAND, one of: {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    command, rest = arguments[0], arguments[1:]
    if command == "build":
        from . import versions

        return versions.main(rest)
    if command == "gradescope":
        from . import gradescope

        return gradescope.main(rest)
    from . import grade

    if command == "grade":
        return grade.main(rest)
    try:
        state = grade.protections()
    except grade.PoolError as error:
        print(error, file=sys.stderr)
        return 1
    print(state)
    return 1 if state.missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
