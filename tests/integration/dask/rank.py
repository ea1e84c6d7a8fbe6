"""One rank as a program: takes steps over the link and writes digests of what it received.

python rank.py ADDRESS RANK STEPS OUT.json
"""

import json
import sys
from pathlib import Path

import msd
from msd.testing.scenarios import digest


def main() -> None:
    address, rank, steps, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    with msd.connect(address, rank=rank) as client:
        batches = [next(client) for _ in range(steps)]
        served_at = str(client._transport._channel.address)
    received = [
        {"step": batch.step, "digest": digest(batch), "sample_ids": [list(one) for one in batch.sample_ids]}
        for batch in batches
    ]
    out.write_text(json.dumps({"served_at": served_at, "steps": received}))


if __name__ == "__main__":
    main()
