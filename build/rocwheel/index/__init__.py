"""The index: what pip and uv see of a store, and the records it can be made again from.

`places` names every key, `channels` reads `ci/channels.yaml`, `page` renders one package page,
`publish` changes pages so that several writers lose nothing, `records` keeps manifests, verdicts,
intents and releases, `serve` shows a store over local HTTP.
"""
