"""Another host of a group: `python -m tests.fakes.ranks.node SETTINGS OWN`, both as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shared.ending import end_process
from shared.engine.ranks.handshake import OwnNode
from shared.engine.ranks.node import Node
from shared.engine.ranks.processes import LogSettings
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError
from shared.rpc.auth import ClusterToken
from shared.telemetry.logs import configure_logs

if __name__ == "__main__":
    configure_logs(service="node", level="info", as_json=False)
    own = json.loads(sys.argv[2])
    if "token" in own:
        own["token"] = ClusterToken(Path(own["token"]))
    node = Node(
        RankSettings(**json.loads(sys.argv[1])), OwnNode(**own), logs=LogSettings(level="info")
    )
    try:
        end_process(node.follow())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        end_process(2)
