"""Which modules of the standard library the model learns.

A list rather than a walk: each is safe to import, has no side effects, and exists on every platform
that runs the tests.
"""

from __future__ import annotations

# Asked about most, so shown twice as often.
CORE = (
    "asyncio", "builtins", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "functools", "glob", "hashlib", "heapq", "inspect", "io", "itertools", "json", "logging",
    "math", "operator", "os", "os.path", "pathlib", "pickle", "queue", "random", "re", "shutil",
    "statistics", "string", "subprocess", "sys", "tempfile", "threading", "time", "typing",
)  # fmt: skip

MORE = (
    "abc", "argparse", "array", "ast", "base64", "bisect", "bz2", "calendar", "cmath", "codecs",
    "collections.abc", "colorsys", "concurrent.futures", "configparser", "contextvars", "copyreg",
    "cProfile", "decimal", "difflib", "dis", "email.message", "email.utils", "enum", "errno",
    "filecmp", "fileinput", "fnmatch", "fractions", "gc", "getpass", "gettext", "graphlib", "gzip",
    "hmac", "html", "html.parser", "http.client", "http.cookies", "http.server", "imaplib",
    "importlib", "ipaddress", "keyword", "linecache", "locale", "lzma", "marshal", "mimetypes",
    "mmap", "multiprocessing", "netrc", "numbers", "optparse", "pdb", "pkgutil", "platform",
    "plistlib", "pprint", "profile", "pstats", "py_compile", "reprlib", "runpy", "sched", "secrets",
    "select", "selectors", "shelve", "shlex", "signal", "smtplib", "socket", "socketserver",
    "sqlite3", "ssl", "stat", "struct", "symtable", "sysconfig", "tarfile", "textwrap", "timeit",
    "token", "tokenize", "tomllib", "trace", "traceback", "tracemalloc", "types", "unicodedata",
    "unittest", "unittest.mock", "urllib.parse", "urllib.request", "uuid", "venv", "warnings",
    "wave", "weakref", "webbrowser", "xml.etree.ElementTree", "xmlrpc.client", "zipapp", "zipfile",
    "zlib", "zoneinfo",
)  # fmt: skip

# Classes whose methods are worth asking about.
CLASSES = (
    "str", "bytes", "bytearray", "list", "tuple", "dict", "set", "frozenset", "int", "float",
    "collections.Counter", "collections.OrderedDict", "collections.deque", "datetime.date",
    "datetime.datetime", "datetime.timedelta", "fractions.Fraction", "logging.Logger",
    "pathlib.Path", "pathlib.PurePath", "queue.Queue", "random.Random", "re.Match", "re.Pattern",
    "string.Formatter", "subprocess.Popen", "threading.Barrier", "threading.Condition",
    "threading.Event", "threading.Semaphore", "threading.Thread", "asyncio.Event", "asyncio.Lock",
    "asyncio.Queue", "asyncio.Task", "asyncio.Semaphore", "argparse.ArgumentParser",
    "concurrent.futures.Executor", "concurrent.futures.Future", "contextlib.ExitStack",
    "configparser.ConfigParser", "csv.DictWriter", "decimal.Decimal", "io.TextIOWrapper",
    "json.JSONEncoder", "json.JSONDecoder", "socket.socket", "tarfile.TarFile", "uuid.UUID",
    "zipfile.ZipFile", "unittest.TestCase", "selectors.BaseSelector", "struct.Struct",
)  # fmt: skip
