"""Renders the chart with Helm's own library, and kustomizations with kustomize's, without a cluster.

Helm's library can only install into a cluster. This module therefore simulates an API server with the kinds of the chart.
It keeps the release, which Helm stores before it creates any object."""

import base64
import ctypes
import glob
import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

# Kinds of the chart, by group and version.
KINDS = {
    "v1": ["ConfigMap", "Secret", "Service"],
    "apps/v1": ["Deployment"],
    "batch/v1": ["Job"],
    "policy/v1": ["PodDisruptionBudget"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "monitoring.coreos.com/v1": ["ServiceMonitor", "PrometheusRule"],
}


def plural(kind):
    return kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"


class Api(BaseHTTPRequestHandler):
    """The part of a cluster's API that Helm needs to store a release."""

    releases = []

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        group_version = path.removeprefix("apis/").removeprefix("api/")
        groups = [it.split("/") for it in KINDS if "/" in it]
        if path == "version":
            self.answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path == "api":
            self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            versions = [{"name": g, "versions": [{"groupVersion": f"{g}/{v}", "version": v}]} for g, v in groups]
            self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": versions})
        elif group_version in KINDS:
            resources = [
                {"name": plural(kind), "kind": kind, "namespaced": True, "verbs": ["create", "get", "list"]}
                for kind in KINDS[group_version]
            ]
            self.answer(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
        elif path.endswith("/secrets"):
            self.answer(200, {"kind": "SecretList", "apiVersion": "v1", "items": []})
        else:
            self.refuse(404, "NotFound")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        # The release as compressed JSON: the only base64 field of the Secret, in any encoding.
        if found := re.search(rb"H4sI[A-Za-z0-9+/=]{100,}", body):
            self.releases.append(json.loads(gzip.decompress(base64.b64decode(found[0]))))
        # Refuse the Secret, so that nothing is installed.
        self.refuse(403, "Forbidden")

    def refuse(self, code, reason):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})


def library(packages, name):
    [path] = glob.glob(f"{packages}/{name}/_lib/linux-*/lib{name}.so")
    return ctypes.CDLL(path)


class Helm:
    def __init__(self, packages, folder):
        self.lib = library(packages, "helm_sdkpy")
        self.lib.helm_sdkpy_last_error.restype = ctypes.c_char_p
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        cluster = {"cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}, "name": "it"}
        context = {"context": {"cluster": "it", "user": "it"}, "name": "it"}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
                  "users": [{"name": "it", "user": {}}], "current-context": "it"}
        with open(f"{folder}/kubeconfig", "w") as file:
            json.dump(config, file)
        self.handle = ctypes.c_ulonglong()
        path = f"{folder}/kubeconfig".encode()
        self.check(self.lib.helm_sdkpy_config_create(b"default", path, b"it", b"{}", ctypes.byref(self.handle)))

    def check(self, code):
        if code != 0:
            raise RuntimeError(self.lib.helm_sdkpy_last_error().decode())

    def lint(self, chart):
        out = ctypes.c_char_p()
        self.check(self.lib.helm_sdkpy_lint(self.handle, chart.encode(), ctypes.byref(out)))
        return json.loads(out.value)

    def render(self, chart, name, values):
        """Returns the text of the objects and hooks like `helm template`."""
        Api.releases.clear()
        out = ctypes.c_char_p()
        options = json.dumps({"wait": False, "timeout_seconds": 10, "disable_openapi_validation": True}).encode()
        self.lib.helm_sdkpy_install(self.handle, name.encode(), chart.encode(), json.dumps(values).encode(), b"",
                                    options, ctypes.byref(out))
        if not Api.releases:
            raise RuntimeError(self.lib.helm_sdkpy_last_error().decode())
        release = Api.releases[0]
        return release["manifest"], [hook["manifest"] for hook in release.get("hooks", [])]


def kustomize(packages, folder):
    lib = library(packages, "pykustomize")
    lib.pykustomize_last_error.restype = ctypes.c_char_p
    out = ctypes.c_char_p()
    if lib.pykustomize_build(str(folder).encode(), b"{}", ctypes.byref(out)) != 0:
        raise RuntimeError(lib.pykustomize_last_error().decode())
    return out.value.decode()


def objects(text):
    return {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(text) if it}
