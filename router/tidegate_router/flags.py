"""The command line of `tidegate-router`."""

import argparse

DESCRIPTION = "Routes OpenAI API requests to the worker where they are answered soonest."


def build_parser() -> argparse.ArgumentParser:
    """The parser of all flags; `config.load_config` reads what they name."""
    parser = argparse.ArgumentParser(prog="tidegate-router", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="RouterConfig (router.tidegate.dev/v1alpha1) in YAML; - reads standard input",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the config as it will be used, defaults filled in, and exit",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of the gateway, instead of the config's listen; port 0 takes a free one",
    )
    return parser
