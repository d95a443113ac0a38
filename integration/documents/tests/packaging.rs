//! Claims of `packaging/` and of the CI description about the rest of the project.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use dlock_documents::project;

const CHANGES: &str = include_str!("../../../CHANGELOG.md");
const MANIFEST: &str = include_str!("../../../Cargo.toml");
const CI: &str = include_str!("../../../.github/workflows/ci.yml");
const CONTAINER: &str = include_str!("../../../packaging/Containerfile");
const GROUP: &str = include_str!("../../../packaging/group/group.conf");
const PROGRAM: &str = include_str!("../../../packaging/debian/dlock-module");
const DEB: &str = include_str!("../../../packaging/deb.sh");
const INSTALL: &str = include_str!("../../../docs/install.md");
const README: &str = include_str!("../../../README.md");
const MAKEFILE: &str = include_str!("../../../Makefile");
const SERVERS: &str = include_str!("../../servers.sh");

/// The module's name on Linux and on macOS.
const MODULES: [&str; 2] = ["libdlock.so", "libdlock.dylib"];

/// Returns the targets that `make` alone lists.
fn targets() -> BTreeSet<&'static str> {
    let line = |line: &'static str| line.contains("## ").then(|| line.split(':').next())?;
    MAKEFILE.lines().filter_map(line).collect()
}

/// Returns the words of a list in brackets: `name: [one, two]`.
fn list(name: &str) -> BTreeSet<&'static str> {
    let start = format!("{name}: [");
    let list = CI
        .lines()
        .find_map(|line| line.trim().strip_prefix(&start)?.strip_suffix(']'))
        .unwrap_or_else(|| panic!("there is no list of {name}"));
    list.split(", ").collect()
}

/// Returns the commands of all steps, with one line for each target of the matrix.
fn commands() -> Vec<String> {
    let mut commands = Vec::new();
    for line in CI.lines() {
        let Some((_, command)) = line.split_once("run: ") else {
            continue;
        };
        let of_matrix = "${{ matrix.target }}";
        if command.contains(of_matrix) {
            let each = list("target").into_iter();
            commands.extend(each.map(|target| command.replace(of_matrix, target)));
        } else {
            commands.push(command.to_owned());
        }
    }
    commands
}

#[test]
fn the_changes_begin_with_this_version() {
    let version = MANIFEST.lines().find_map(|line| {
        let version = line.strip_prefix("version = \"")?;
        version.strip_suffix('"')
    });
    let headings = CHANGES.lines().filter_map(|line| line.strip_prefix("## "));
    let mut releases: Vec<(&str, &str)> = headings
        .map(|heading| {
            let dated = heading.strip_suffix(')').and_then(|it| it.split_once(" ("));
            dated.unwrap_or_else(|| panic!("{heading}: no date, and not unreleased"))
        })
        .collect();
    let version = version.expect("a version");
    // Between two releases the tree has the next one's version, and that one's changes have no date.
    match version.strip_suffix("-dev") {
        Some(next) => assert_eq!(releases.remove(0), (next, "unreleased")),
        None => assert_eq!(releases.first().map(|release| release.0), Some(version)),
    }
    for (release, date) in &releases {
        let is_date = date.len() == 10 && date.split('-').count() == 3;
        assert!(is_date, "{release}: {date} is no date");
    }
    assert!(releases.is_sorted_by(|later, earlier| later.1 >= earlier.1));
}

/// An operator reads all of it before an update.
#[test]
fn the_changes_of_a_release_are_short() {
    let releases = CHANGES.split("\n## ").skip(1);
    let lines: Vec<usize> = releases.map(|release| release.lines().count()).collect();
    assert!(
        lines.len() > 5 && lines.iter().all(|lines| *lines <= 60),
        "{lines:?}"
    );
}

#[test]
fn every_package_has_this_version() {
    let script = project().join("packaging/version.sh");
    let output = Command::new(script).output().expect("the script runs");
    let listed = String::from_utf8(output.stdout).expect("text");
    let version = env!("CARGO_PKG_VERSION");
    for line in listed.lines() {
        assert_eq!(line.split(' ').next(), Some(version), "{line}");
    }
    for package in ["python", "node", "go", "java", "rust", "php"] {
        let named = format!(" ./clients/{package}/");
        assert!(listed.contains(&named), "{package}: no version");
    }
}

#[test]
fn a_forge_runs_targets_of_the_makefile_and_nothing_else() {
    let targets = targets();
    let mut used = BTreeSet::new();
    for command in commands() {
        // The container has Rust without them.
        if command.starts_with("rustup component add ") {
            continue;
        }
        let mut words = command.split(' ');
        assert_eq!(words.next(), Some("make"), "{command}");
        let target = words.next().unwrap_or_default();
        assert!(targets.contains(target), "{command}: no such target");
        used.insert(target.to_owned());
        for variable in words.filter_map(|word| word.split_once('=')) {
            let name = variable.0;
            assert!(
                MAKEFILE.contains(&format!("$({name})"))
                    || MAKEFILE.contains(&format!("$(if $({name})")),
                "{command}: no such variable"
            );
        }
    }
    for target in [
        "check",
        "test-servers",
        "clients",
        "deb-check",
        "dist-check",
    ] {
        assert!(used.contains(target), "{target} is not run");
    }
}

/// `make` alone lists a target in the group that its help begins with.
#[test]
fn every_target_is_in_a_group_that_is_listed() {
    let groups = MAKEFILE.split("@for group in ").nth(1);
    let groups = groups.and_then(|rest| rest.split(';').next());
    let groups: Vec<&str> = groups.expect("the groups").split(' ').collect();
    // A recipe begins with a tab.
    let is_target = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let targets = MAKEFILE.lines().filter(is_target);
    for (target, help) in targets.filter_map(|line| line.split_once(" ## ")) {
        let (group, does) = help.split_once(": ").unwrap_or_default();
        assert!(groups.contains(&group), "{target}: no such group: {group}");
        let words = does.split(" (").next().unwrap_or_default();
        assert!(
            words.split(' ').count() <= 10,
            "{target}: more than ten words"
        );
    }
}

#[test]
fn a_forge_tests_every_server() {
    let all = SERVERS.lines().find_map(|line| line.strip_prefix("all=("));
    let all = all.and_then(|all| all.strip_suffix(')')).expect("a list");
    let all: BTreeSet<&str> = all.split(' ').collect();
    assert_eq!(list("server"), all);
}

#[test]
fn what_the_container_copies_is_there() {
    let mut copied = 0;
    for line in CONTAINER.lines() {
        let Some(words) = line.strip_prefix("COPY ") else {
            continue;
        };
        let words: Vec<&str> = words.split(' ').collect();
        let from_build = words[0] == "--from=build";
        let (_, sources) = words.split_last().expect("where it is copied to");
        for source in sources {
            if from_build {
                let built = source.strip_prefix("/dlock/target/release/");
                assert!(
                    source.starts_with("--") || matches!(built, Some("libdlock.so" | "dlock")),
                    "{source}"
                );
            } else {
                assert!(project().join(source).exists(), "{source} is not there");
            }
            copied += 1;
        }
    }
    assert!(copied > 4, "{copied} are found");
}

/// Cargo reads no crate of a workspace if one is missing. A folder brings those in it along.
#[test]
fn the_container_copies_every_crate_of_the_workspace() {
    let members = MANIFEST.lines().find_map(|line| {
        let list = line.strip_prefix("members = [")?;
        list.strip_suffix(']')
    });
    let members = members.expect("a list").split(", ");
    for member in members.map(|member| member.trim_matches('"')) {
        let copies = |folder: &Path| {
            let folder = folder.display();
            CONTAINER.contains(&format!("\nCOPY {folder} {folder}\n"))
        };
        assert!(Path::new(member).ancestors().any(copies), "{member}");
    }
}

/// Runs `make install` as a user does. Returns its output.
fn install(arguments: &[&str]) -> String {
    let mut make = Command::new("make");
    make.args(["--dry-run", "install"]).args(arguments);
    make.current_dir(project());
    // A user's shell has none of the variables of the `make` that runs the tests.
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "PREFIX", "DESTDIR"] {
        make.env_remove(variable);
    }
    let output = make.output().expect("there is a make");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the path in the line that loads the module.
fn loaded(text: &str) -> &str {
    let line = text
        .lines()
        .find_map(|line| line.split("loadmodule ").nth(1));
    let path = line.and_then(|line| line.split([' ', '\'']).next());
    path.expect("a line that loads the module")
}

/// Returns the directories from which a unit lets the server execute files, if it restricts them.
fn executable(unit: &str) -> Option<Vec<&str>> {
    let values = |name: &'static str| {
        let lines = unit.lines().filter_map(move |line| line.strip_prefix(name));
        lines.flat_map(str::split_whitespace)
    };
    values("NoExecPaths=").next()?;
    let paths = values("ExecPaths=").map(|path| path.trim_start_matches(['-', '+']));
    Some(paths.collect())
}

/// Debian's services of the server execute nothing from elsewhere: otherwise they would not start with the module.
#[cfg(target_os = "linux")]
#[test]
fn debians_service_can_load_what_is_installed() {
    let debian_12 = "NoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib /lib\n";
    let here = ["redis-server", "valkey-server"]
        .map(|name| fs::read_to_string(format!("/lib/systemd/system/{name}.service")));
    let said = install(&[]);
    let path = Path::new(loaded(&said));
    for unit in here.iter().flatten().map(String::as_str).chain([debian_12]) {
        let Some(paths) = executable(unit) else {
            continue;
        };
        let can_load = |path: &Path| paths.iter().any(|below| path.starts_with(below));
        assert!(can_load(path), "{} is not in {paths:?}", path.display());
        assert!(!can_load(Path::new(
            "/usr/local/lib/redis/modules/libdlock.so"
        )));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn everything_installs_and_loads_the_module_at_one_place() {
    let said = install(&[]);
    let path = loaded(&said);
    assert!(said.contains(&format!(" '{path}'\n")), "{said}");
    for text in [README, INSTALL, GROUP] {
        assert_eq!(loaded(text), path);
    }
    assert!(PROGRAM.contains(&format!("\nmodule={path}\n")));
    assert!(CONTAINER.contains(&format!(" {path}\n")));
    assert!(CONTAINER.contains(&format!("\"--loadmodule\", \"{path}\"")));
    assert!(DEB.contains(&format!("\"$root{path}\"")));
}

#[test]
fn another_place_is_possible() {
    let said = install(&["PREFIX=/opt", "DESTDIR=/scratch"]);
    let module = MODULES.map(|name| format!("/opt/lib/redis/modules/{name}"));
    assert!(module.contains(&loaded(&said).to_owned()), "{said}");
    assert!(said.contains("'/scratch/opt/lib/redis/modules/"), "{said}");
}

/// What Kubernetes runs in a pod is what the script can do: the nodes, the step before a pod ends, and whether it is ready.
#[test]
fn kubernetes_runs_what_the_script_can_do() {
    let read = |name| fs::read_to_string(project().join("packaging/group").join(name));
    let text = read("kubernetes.yaml").expect("the file of the group");
    let script = read("start.sh").expect("the script");
    let mut words = BTreeSet::new();
    for rest in text.split("[/usr/local/bin/dlock-node, ").skip(1) {
        let (word, _) = rest.split_once(']').expect("one word");
        assert!(script.contains(&format!("\n{word}) ")), "{word}");
        words.insert(word);
    }
    assert_eq!(
        words.into_iter().collect::<Vec<_>>(),
        ["leave", "ready", "sentinel", "server"]
    );
}

/// Sentinel gives clients the names of the nodes. A client in another namespace resolves only names that end with the group's.
#[test]
fn the_names_of_nodes_are_known_in_every_namespace() {
    let text = fs::read_to_string(project().join("packaging/group/kubernetes.yaml"));
    let text = text.expect("the file of the group");
    let mut seen = 0;
    for container in text
        .split("\n          command: [/usr/local/bin/dlock-node")
        .skip(1)
    {
        let (_, known) = container
            .split_once("name: NAMESPACE\n")
            .expect("the namespace");
        let values = known.lines().filter_map(|line| {
            let value = line.trim().strip_prefix("- {name: DLOCK_")?;
            let (name, value) = value.split_once(", value: ")?;
            ["SELF", "NODES"]
                .contains(&name)
                .then(|| value.trim_end_matches('}'))
        });
        for name in values.flat_map(|value| value.split(' ')) {
            assert!(name.ends_with(".dlock.$(NAMESPACE)"), "{name}");
            seen += 1;
        }
    }
    assert_eq!(
        seen, 8,
        "itself and three nodes, for a server and a Sentinel"
    );
}
