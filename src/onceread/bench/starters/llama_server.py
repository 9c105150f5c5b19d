"""Starts llama-server, the native one inside the wheel ``xllamacpp``, in that wheel's own environment.

Run by file, never imported: ``python llama_server.py '{"model": ..., ...}'``. Prints ``READY url`` and serves until
its standard input is closed. ``info`` instead of the JSON prints what it is built from.
"""

import json
import sys

import xllamacpp


def described() -> str:
    """Versions and CPU features, in a line."""
    system = xllamacpp.get_system_info().replace("\n", " ").strip()
    return f"xllamacpp {xllamacpp.__version__} (built by {xllamacpp.BUILD_INFO.get('compiler')}): {system}"


def main() -> None:
    if sys.argv[1] == "info":
        print(described())
        return
    given = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = given["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = given["port"]
    params.n_ctx = given["ctx"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
    params.endpoint_metrics = True
    # What the command `llama-server` does where it is told nothing: four slots over one context.
    params.n_parallel = given["parallel"]
    params.n_batch = given["batch"]
    params.n_ubatch = min(512, given["batch"])
    params.kv_unified = True
    for name, value in given.get("params", {}).items():
        if not hasattr(params, name):
            raise SystemExit(f"llama-server: this release knows no {name}")
        setattr(params, name, value)
    if given["flash_attn"] != "auto":
        params.flash_attn_type = xllamacpp.llama_flash_attn_type(given["flash_attn"] == "on")
    server = xllamacpp.Server(params)
    print(f"READY {server.listening_address}", flush=True)
    sys.stdin.read()


main()
