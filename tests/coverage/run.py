#!/usr/bin/env python3
"""run.py DIRECTORY: counts the lines of the pure crates that the tests without a server run.

Prints the lines that no test runs, by file, and a percentage for each crate. Fails if a crate has less than LEAST. The functions of
`exceptions.txt` do not count, nor does the report of a broken invariant (`broken!`), which no test can reach. Fails also if tests
run all of such a function, or if it is gone. What it builds goes to DIRECTORY, and its numbers to DIRECTORY/lcov.info.
"""

import json
import os
import pathlib
import subprocess
import sys

CRATES = ["engine", "commands", "confirm"]
LEAST = 97.0

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent


def said(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def tools():
    """Returns the folder of the compiler's own llvm-profdata and llvm-cov: others may not know its format."""
    host = next(line[6:] for line in said("rustc", "-vV").splitlines() if line.startswith("host: "))
    folder = pathlib.Path(said("rustc", "--print", "sysroot").strip()) / "lib/rustlib" / host / "bin"
    if not (folder / "llvm-cov").exists():
        print("dlock: installing llvm-tools", file=sys.stderr)
        try:
            subprocess.run(["rustup", "component", "add", "llvm-tools"], check=True)
        except (OSError, subprocess.CalledProcessError):
            sys.exit("dlock: coverage needs the compiler's llvm-tools: rustup component add llvm-tools")
    return folder


def run(directory):
    """Runs the tests. Returns the programs, and what they have left of each run."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(directory), CARGO_INCREMENTAL="0", RUSTFLAGS="-Cinstrument-coverage")
    # The build also runs instrumented programs.
    environment["LLVM_PROFILE_FILE"] = str(directory / "build" / "%m.profraw")
    words = ["cargo", "test", "--tests", "--no-run", "--message-format=json-render-diagnostics"]
    words += ["--package=dlock-engine", "--package=dlock-commands", "--package=dlock-confirm"]
    built = subprocess.run(words, cwd=PROJECT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    programs = {}
    for message in map(json.loads, built.stdout.splitlines()):
        if message.get("executable"):
            programs[message["executable"]] = pathlib.Path(message["manifest_path"]).parent
    profiles = directory / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    for old in profiles.glob("*.profraw"):
        old.unlink()
    environment["LLVM_PROFILE_FILE"] = str(profiles / "%p-%m.profraw")
    for program, folder in programs.items():
        tested = subprocess.run([program, "--quiet"], cwd=folder, env=environment)
        if tested.returncode != 0:
            sys.exit(f"dlock: {program} fails")
    return list(programs), sorted(profiles.glob("*.profraw"))


def measured(directory):
    """Returns the lines of each file of the crates, with how often each is run."""
    folder = tools()
    programs, profiles = run(directory)
    merged = directory / "merged.profdata"
    said(folder / "llvm-profdata", "merge", "--sparse", *profiles, "-o", merged)
    files = {}
    exported = ""
    # One program after the other: together, a function that one of them links and never calls counts as not run in all.
    for program in programs:
        exported += said(folder / "llvm-cov", "export", "--format=lcov", f"--instr-profile={merged}", program)
    (directory / "lcov.info").write_text(exported)
    counts = {}
    for line in exported.splitlines():
        if line.startswith("SF:"):
            path = pathlib.Path(line[3:])
            counts = {}
            if path.is_relative_to(PROJECT):
                name = path.relative_to(PROJECT).as_posix()
                if name.split("/")[0] in CRATES and name.split("/")[1] == "src":
                    counts = files.setdefault(name, {})
        elif line.startswith("DA:"):
            number, count = (int(word) for word in line[3:].split(",")[:2])
            counts[number] = max(count, counts.get(number, 0))
    return files


def exceptions():
    """Returns the functions that no test without a server needs to run: their files and names."""
    lines = (HERE / "exceptions.txt").read_text().splitlines()
    return [tuple(line.split(" ")) for line in lines if line and not line.startswith("#")]


def body(source, function):
    """Returns the numbers of the lines of a function; none if it is not in the source."""
    for start, line in enumerate(source, 1):
        if f"fn {function}(" in line or f"fn {function}<" in line:
            indent = line[: len(line) - len(line.lstrip())]
            length = source[start:].index(indent + "}")
            return range(start, start + length + 2)
    return range(0)


def unreachable(source):
    """Returns the numbers of the lines that report a broken invariant, or leave the function after it."""
    found = set()
    for number, line in enumerate(source, 1):
        if "broken!(" in line:
            found |= {number, number + 1}
    return found


def main():
    files = measured(pathlib.Path(sys.argv[1]).resolve())
    failed = []
    totals = {crate: [0, 0] for crate in CRATES}
    without = {name: set() for name in files}
    for name, function in exceptions():
        lines = body((PROJECT / name).read_text().splitlines(), function)
        if all(files[name].get(number) != 0 for number in lines):
            failed.append(f"exceptions.txt: {name} {function}: tests run all of it, or it is gone")
        without[name].update(lines)
    for name in sorted(files):
        source = (PROJECT / name).read_text().splitlines()
        apart = without[name] | {number for number in unreachable(source) if files[name].get(number) == 0}
        total = totals[name.split("/")[0]]
        for number, count in sorted(files[name].items()):
            if number in apart:
                continue
            total[0] += 1
            total[1] += count > 0
            if count == 0:
                print(f"{name}:{number}: {source[number - 1].strip()}")
    for crate, (lines, ran) in totals.items():
        share = 100 * ran / lines
        print(f"{crate}: {share:.1f} % of {lines} lines")
        if share < LEAST:
            failed.append(f"{crate}: less than {LEAST} %")
    if failed:
        sys.exit("\n".join(f"dlock: {what}" for what in failed))


main()
