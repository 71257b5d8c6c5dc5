#!/usr/bin/env python3
"""Kill a controller with SIGKILL again and again while clients submit jobs to it.

Every acknowledged submission must be there after the last start, once, under the number that was
acknowledged. The seed draws the moments of the kills. Run it as the user that
starts the controller, who is its administrator and has no limits. Usage:

    lab/kill_loop.py [KILLS] [WATTLINE] [SEED]      (default: 200 target/release/wattline 1)

Prints how many kills there were, how many submissions were acknowledged, lost and doubled; ends
with 1 if any was lost or doubled.
"""
import http.client, json, random, signal, socket, subprocess, sys, tempfile, threading, time

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
WATTLINE = sys.argv[2] if len(sys.argv) > 2 else "target/release/wattline"
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
CLIENTS = 4
SCENARIO = """
name = "kill-loop"
seed = 1
[[nodes]]
count = 4
gpu = "h200"
gpus = 8
[jobs]
count = 5
load = 0.2
"""


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(self.path)


def client(number, path, acknowledged, refused, stop):
    """Submits with a key of its own for each job, and again under that key until it is answered."""
    count = 0
    while not stop.is_set():
        key = f"kill-loop-{number}-{count}"
        body = {"name": key, "workload": "resnet50-imagenet", "gpus": 1, "duration_s": 30 + count % 600}
        while not stop.is_set():
            try:
                connection = Unix(path)
                headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
                connection.request("POST", "/v1/jobs", json.dumps(body), headers)
                answer = connection.getresponse()
                text = answer.read()
                connection.close()
                if answer.status in (200, 201):
                    acknowledged.append((key, json.loads(text)["job"]))
                    break
                if answer.status not in (429, 503):
                    refused.append(f"{answer.status}: {text.decode()}")
                    return
                time.sleep(0.05)
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)
        count += 1


def start(folder):
    arguments = ["serve", "--scenario", f"{folder}/scenario.toml", "--speed", "60", "--stay"]
    arguments += ["--journal", f"{folder}/journal", "--socket", f"{folder}/socket"]
    log = open(f"{folder}/log", "ab")
    return subprocess.Popen([WATTLINE, *arguments], stdout=log, stderr=log)


def jobs(path):
    """All jobs, page by page."""
    found, after = [], None
    while True:
        connection = Unix(path)
        query = "state=all&limit=1000" + ("" if after is None else f"&after={after}")
        connection.request("GET", f"/v1/jobs?{query}")
        page = json.loads(connection.getresponse().read())
        connection.close()
        found += page["jobs"]
        after = page.get("next")
        if after is None:
            return found


def main():
    folder = tempfile.mkdtemp(prefix="wattline-kill-loop-")
    with open(f"{folder}/scenario.toml", "w") as file:
        file.write(SCENARIO)
    path, acknowledged, refused, stop = f"{folder}/socket", [], [], threading.Event()
    process = start(folder)
    shared = (path, acknowledged, refused, stop)
    threads = [threading.Thread(target=client, args=(n, *shared)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    random.seed(SEED)
    for kill in range(KILLS):
        time.sleep(random.uniform(0.1, 0.8))
        if process.poll() is not None:
            stop.set()
            sys.exit(f"ended by itself after {kill} kills: see {folder}/log")
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start(folder)
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    if refused or not acknowledged:
        process.kill()
        sys.exit(f"nothing was tried: {refused or 'no answer'}; see {folder}/log")
    found = [job for job in jobs(path) if job["name"].startswith("kill-loop-")]
    numbers = {job["name"]: job["id"] for job in found}
    lost = [key for key, number in acknowledged if numbers.get(key) != number]
    doubled = len(found) - len(numbers)
    process.send_signal(signal.SIGTERM)
    process.wait()
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, {len(lost)} lost, {doubled} doubled; {folder}")
    sys.exit(1 if lost or doubled else 0)


main()
