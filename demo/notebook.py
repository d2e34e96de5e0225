"""What a notebook would run, for the demo: `python -m demo.notebook URL`. It reads a table and some
images below a URL, as any user, without a mount.
"""

from __future__ import annotations

import os
import sys

import pandas as pd
import xxhash

import cachefs


def main() -> None:
    (url,) = sys.argv[1:]
    labels = pd.read_csv(f"{url}/labels.csv")
    print(f"uid {os.getuid()}: {len(labels):,} rows of labels.csv")
    names = [*labels["image"].sample(200, random_state=1)]
    images = cachefs.tree(url).read_batch(names)
    with cachefs.open(f"{url}/{names[0]}") as file:
        assert file.read() == images[0]
    found = labels.set_index("image").loc[names]
    found["right"] = [
        xxhash.xxh3_128_hexdigest(image) == wanted
        for image, wanted in zip(images, found["xxh3"], strict=True)
    ]
    print(found.groupby("label")["right"].agg(images="size", right="sum").to_string())


if __name__ == "__main__":
    main()
