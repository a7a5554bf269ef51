"""Checks deploy/helm and deploy/kubernetes without a cluster: renders them, compares and validates the objects, and runs
the containers as processes with the commands, environment, probes and volumes of their pods.

Usage: check.py PACKAGES --write                       (writes the files of deploy/kubernetes that the chart generates)
       check.py PACKAGES FENCEGATE PSQL PORT FOLDER    (PORT: a server with a superuser `postgres` and trust)"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, sys.argv[1])
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402
from render import Helm, kustomize, objects  # noqa: E402

PACKAGES = sys.argv[1]
PROJECT = pathlib.Path(__file__).parents[3]
CHART = PROJECT / "deploy/helm/fencegate"
KUSTOMIZE = PROJECT / "deploy/kubernetes"
# The newest API version for which `kubernetes-validate` has a schema, and the oldest that the chart supports.
VERSIONS = ["1.34", "1.30"]
TABLE = "CREATE TABLE public.ticks (tick text, token bigint); GRANT ALL ON public.ticks TO app"
POLICY = "version: 1\nresources: [{name: scheduler, lease: cron/scheduler, tables: [public.ticks]}]\n"
ALL = {
    "upstream": "postgres://postgres:5432",
    "tlsSecret": "fencegate-tls",
    "watchFiles": "1s",
    "policies": {"policies.yaml": POLICY},
    "settings": {"max_connections": 500},
    "service": {"type": "LoadBalancer", "proxyProtocolFrom": "10.0.0.0/8"},
    "init": {"enabled": True, "guard": True, "leasesFor": "app", "elections": "cron/*"},
}


def values_of(name):
    return yaml.safe_load((CHART / name).read_text())


def without_source(text):
    return re.sub(r"(?m)^# Source: .*\n", "", text)


def extra(manifest, base):
    """Returns the documents of a manifest that are not in the base."""
    documents = [it.strip("\n") for it in without_source(manifest).split("\n---\n") if yaml.safe_load(it)]
    return [it for it in documents if not objects(it).keys() <= objects(base).keys()]


def generated(helm):
    """The generated files of deploy/kubernetes and their text."""
    notice = "# Generated from deploy/helm/fencegate by tests/soak/kubernetes/check.py --write.\n"
    base, _ = helm.render(str(CHART), "fencegate", {})
    ha, _ = helm.render(str(CHART), "fencegate", values_of("values-ha.yaml"))
    sidecar, _ = helm.render(str(CHART), "fencegate", values_of("values-sidecar.yaml"))
    join = lambda documents: notice + "\n---\n".join(documents) + "\n"
    return {
        KUSTOMIZE / "base/fencegate.yaml": join(extra(base, "")),
        KUSTOMIZE / "overlays/ha/ha.yaml": join(extra(ha, base)),
        KUSTOMIZE / "overlays/sidecar/sidecar.yaml": join(extra(sidecar, "")),
    }


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def validate(found):
    """Validates the objects against the schemas of the API, which do not include the operator's kinds."""
    for it in found.values():
        if it["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(it, version, strict=True)


def containers_of(pod):
    return pod.get("initContainers", []) + pod["containers"]


def check_references(found):
    """Checks that names of ports, volumes and ConfigMaps, labels and times are consistent."""
    for (kind, name), it in found.items():
        if kind not in ("Deployment", "Job"):
            continue
        pod = it["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for container in containers_of(pod):
            for mount in container.get("volumeMounts", []):
                config = volumes[mount["name"]].get("configMap")
                check(config is None or ("ConfigMap", config["name"]) in found, f"{name}: {config}")
            ports = {port["name"] for port in container.get("ports", [])}
            probes = [container[key]["httpGet"]["port"] for key in container if key.endswith("Probe")]
            check(ports.issuperset(probes), f"{name}: probes use {probes} of {ports}")
    deployment = found["Deployment", "fencegate"]["spec"]
    labels, pod = deployment["template"]["metadata"]["labels"], deployment["template"]["spec"]
    ports = {port["name"] for it in containers_of(pod) for port in it.get("ports", [])}
    check(deployment["selector"]["matchLabels"].items() <= labels.items(), "selector of the Deployment")
    for (kind, name), it in found.items():
        spec = it.get("spec", {})
        if kind == "Service":
            check(spec["selector"].items() <= labels.items(), f"selector of {name}")
            check({port["targetPort"] for port in spec["ports"]} <= ports, f"ports of {name}")
        elif kind in ("PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("selector") or spec["podSelector"]
            check(selector["matchLabels"].items() <= labels.items(), f"selector of {kind}")
            check({p["port"] for rule in spec.get("ingress", []) for p in rule["ports"]} <= ports, f"ports of {kind}")
        elif kind == "ServiceMonitor":
            [service] = [it for (kind, _), it in found.items() if kind == "Service" and it["spec"].get("clusterIP") == "None"]
            check(spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items(), "ServiceMonitor")
            check(service["metadata"]["labels"][spec["jobLabel"]] == "fencegate", "the job that the alerts expect")
        elif kind == "PrometheusRule":
            alerts = yaml.safe_load((PROJECT / "deploy/prometheus/alerts.yml").read_text())
            check(spec == alerts, "the alerts differ from deploy/prometheus/alerts.yml")
    proxy = next(it for it in containers_of(pod) if it["name"] == "fencegate")
    pause = proxy.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    shutdown = int(variables(proxy)["FENCEGATE_SHUTDOWN_TIMEOUT"].removesuffix("s"))
    # docs/run/deploy.md: 3 s for clients, and 5 s for rows in the databases.
    check(pod["terminationGracePeriodSeconds"] >= pause + shutdown + 8, "the grace period is too short")


SECRETS = {}


def variables(container):
    """The environment of a container, with the values of Secrets."""
    def value(it):
        if "value" in it:
            return it["value"]
        reference = it["valueFrom"]
        if "fieldRef" in reference:
            return "fencegate-0"
        key = reference["secretKeyRef"]
        return SECRETS.get((key["name"], key["key"]), "")

    return {it["name"]: value(it) for it in container.get("env", [])}


def image_settings():
    """ENV of the image. Its ENTRYPOINT is the program."""
    text = (PROJECT / "Dockerfile").read_text().replace("\\\n", " ")
    [line] = re.findall(r"(?m)^ENV (.*)$", text)
    return dict(pair.split("=", 1) for pair in line.split())


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def wait_until(what, condition):
    deadline = time.monotonic() + 30
    while not condition():
        check(time.monotonic() < deadline, f"timed out: {what}")
        time.sleep(0.05)


class Volume:
    """A volume of a ConfigMap or Secret. Like a kubelet, replaces its files by renaming the link `..data`."""

    def __init__(self, path, files):
        self.path, self.version = path, 0
        path.mkdir(parents=True)
        self.update(files)
        for name in files:
            (path / name).symlink_to(f"..data/{name}")

    def update(self, files):
        self.version += 1
        folder = self.path / f"..version_{self.version}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        (self.path / "..data_tmp").symlink_to(folder.name)
        (self.path / "..data_tmp").rename(self.path / "..data")


class Pod:
    """A pod whose containers run as processes. Container ports become free ports, and mounted paths become folders."""

    def __init__(self, world, name, found, spec):
        self.world, self.folder, self.processes, self.ports, self.volumes = world, world.folder / name, {}, {}, {}
        self.spec = spec
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                files = found["ConfigMap", volume["configMap"]["name"]]["data"]
            else:
                files = world.secrets[volume["secret"]["secretName"]]
            self.volumes[volume["name"]] = Volume(self.folder / volume["name"], files)

    def port(self, number):
        return self.ports.setdefault(number, free_port())

    def translate(self, container, text):
        for mount in container.get("volumeMounts", []):
            text = text.replace(mount["mountPath"], str(self.volumes[mount["name"]].path))
        text = text.replace("//postgres:5432", f"//127.0.0.1:{self.world.server}")
        return re.sub(r"^(--http=)?(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)$",
                      lambda it: f"{it[1] or ''}127.0.0.1:{self.port(int(it[2]))}", text)

    def start(self, container):
        environment = variables(container)
        is_proxy = container["image"].startswith("fencegate:")
        if is_proxy:
            environment = image_settings() | environment
        environment = {name: self.translate(container, value) for name, value in environment.items()}
        if "PGPORT" in environment:
            environment["PGPORT"] = str(self.port(int(environment["PGPORT"])))
        environment["PATH"] = f"{self.world.programs}:/usr/bin:/bin"
        if is_proxy:
            words = ["fencegate", *container.get("args", ["proxy"])]
        else:
            words = container["command"] + container.get("args", [])
        words = [self.translate(container, word) for word in words]
        log = open(self.folder / f"{container['name']}.log", "w")
        self.processes[container["name"]] = subprocess.Popen(
            words, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, executable=shutil.which(words[0], path=environment["PATH"]))

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def is_up(self, container, probe):
        check(self.processes[container["name"]].poll() is None, self.log(container["name"]))
        get = container[probe]["httpGet"]
        [number] = [it["containerPort"] for it in container["ports"] if it["name"] == get["port"]]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port(number)}{get['path']}", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def run(self):
        """Starts the containers in a kubelet's order, and waits for the probes."""
        for container in self.spec.get("initContainers", []):
            self.start(container)
            if container.get("restartPolicy") == "Always":
                wait_until(f"{container['name']} has started", lambda: self.is_up(container, "startupProbe"))
            else:
                code = self.processes[container["name"]].wait(30)
                check(code == 0, f"{container['name']} ended with {code}: {self.log(container['name'])}")
        for container in self.spec["containers"]:
            self.start(container)
        for container in containers_of(self.spec):
            for probe in [it for it in ("startupProbe", "livenessProbe", "readinessProbe") if it in container]:
                wait_until(f"{probe} of {container['name']}", lambda: self.is_up(container, probe))

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return {name: process.wait(30) for name, process in self.processes.items()}

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


class World:
    def __init__(self, binary, psql, server, folder):
        self.server, self.folder = int(server), pathlib.Path(folder)
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        (self.programs / "fencegate").symlink_to(binary)
        (self.programs / "psql").symlink_to(psql)
        self.secrets = {}

    def sql(self, database, text):
        words = ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", f"host=127.0.0.1 port={self.server} user=postgres dbname={database}", "-c", text]
        return subprocess.run(words, executable=str(self.programs / "psql"), check=True, capture_output=True, text=True).stdout.strip()


def run_all(world, helm):
    """The Job of the hook, then a proxy with TLS behind a load balancer."""
    manifest, hooks = helm.render(str(CHART), "fencegate", ALL)
    found = objects(manifest) | objects("\n---\n".join(hooks))
    certificate, key = world.folder / "tls.crt", world.folder / "tls.key"

    def certificates(name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                        "-keyout", key, "-out", certificate], check=True, capture_output=True)
        return {"tls.crt": certificate.read_text(), "tls.key": key.read_text()}

    world.secrets["fencegate-tls"] = certificates("first")
    job = Pod(world, "init", found, found["Job", "fencegate-init"]["spec"]["template"]["spec"])
    job.run()
    codes = {name: process.wait(30) for name, process in job.processes.items()}
    check(set(codes.values()) == {0}, f"{codes}\n{job.log('guard')}")
    triggers = world.sql("app", "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'ticks'::regclass AND NOT tgisinternal")
    print(f"init: exit codes {codes}, {triggers} triggers on public.ticks")
    check(int(triggers) > 0, job.log("guard"))

    pod = Pod(world, "proxy", found, found["Deployment", "fencegate"]["spec"]["template"]["spec"])
    try:
        pod.run()
        # Replace both volumes before the proxy checks the files again.
        pod.volumes["tls"].update(certificates("renewed"))
        pod.volumes["policies"].update({"policies.yaml": POLICY.replace("lease:", "mode: observe, lease:")})
        wait_until("new certificates are used", lambda: '"certificate_changed"' in pod.log("fencegate"))
        wait_until("new policies are loaded", lambda: '"policy_changed"' in pod.log("fencegate"))
        check('"reload_failed"' not in pod.log("fencegate"), pod.log("fencegate"))
        codes = pod.stop()
        check(codes == {"fencegate": 0}, f"{codes}")
        print("proxy: all probes succeed; reloads replaced volumes; exit code 0 after SIGTERM")
    finally:
        pod.kill()


def run_sidecar(world, found):
    """Two pods with candidates. The leader's command writes through the sidecar with its token."""
    program = world.programs / "scheduler"
    write = "INSERT INTO public.ticks VALUES ('$FENCE_HOLDER', fencegate.token('scheduler'))"
    program.write_text(f'#!/bin/sh\npsql -Xq "user=app dbname=app" -c "{write}" && exec sleep 1000\n')
    program.chmod(0o755)
    spec = found["Deployment", "fencegate"]["spec"]["template"]["spec"]
    pods = [Pod(world, f"sidecar-{number}", found, spec) for number in (1, 2)]
    rows = lambda: int(world.sql("app", "SELECT count(*) FROM public.ticks"))
    try:
        for pod in pods:
            pod.run()
        wait_until("one writes", lambda: rows() == 1)
        wait_until("the other waits", lambda: any("lease_awaited" in pod.log("scheduler") for pod in pods))
        [leader] = [pod for pod in pods if "lease_acquired" in pod.log("scheduler")]
        leader.processes["scheduler"].send_signal(signal.SIGTERM)
        wait_until("its successor writes", lambda: rows() == 2)
        tokens = world.sql("app", "SELECT string_agg(token::text, ' then ' ORDER BY token) FROM public.ticks")
        print(f"sidecar: tokens {tokens}")
        check(tokens == "1 then 2", tokens)
    finally:
        for pod in pods:
            pod.kill()


def main():
    if sys.argv[2] == "--write":
        for path, text in generated(Helm(PACKAGES, os.environ.get("TMPDIR", "/tmp"))).items():
            path.write_text(text)
        return
    world = World(*sys.argv[2:])
    helm = Helm(PACKAGES, world.folder)
    check(not helm.lint(str(CHART))["Errors"], "helm lint")
    for path, text in generated(helm).items():
        check(path.read_text() == text, f"{path.relative_to(PROJECT)} is not that of the chart: check.py --write")
    forms = {"base": {}, "overlays/ha": values_of("values-ha.yaml"), "overlays/sidecar": values_of("values-sidecar.yaml")}
    for folder, values in forms.items():
        manifest, _ = helm.render(str(CHART), "fencegate", values)
        built = objects(kustomize(PACKAGES, KUSTOMIZE / folder))
        check(built == objects(manifest), f"{folder}: kustomize and Helm make different objects")
        validate(built)
        check_references(built)
        print(f"{folder}: {', '.join(kind for kind, _ in built)}")
    manifest, hooks = helm.render(str(CHART), "fencegate", ALL)
    found = objects(manifest) | objects("\n---\n".join(hooks))
    validate(found)
    check_references(found)
    print(f"all values: {', '.join(kind for kind, _ in found)}")

    url = f"postgres://{{}}@127.0.0.1:{world.server}/{{}}"
    SECRETS.update({
        ("fencegate", "control"): url.format("fencegate", ""),
        ("fencegate-init", "control"): url.format("postgres", "app"),
        ("scheduler", "coordinator"): url.format("app", "app"),
    })
    world.sql("postgres", "CREATE ROLE fencegate LOGIN")
    world.sql("postgres", "CREATE ROLE app LOGIN")
    world.sql("postgres", "CREATE DATABASE app")
    world.sql("app", TABLE)
    run_all(world, helm)
    sidecar = values_of("values-sidecar.yaml") | {"policies": {"policies.yaml": POLICY}}
    manifest, _ = helm.render(str(CHART), "fencegate", sidecar)
    run_sidecar(world, objects(manifest))


main()
