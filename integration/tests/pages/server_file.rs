//! `dlock-module` of the Debian package: it puts the line that loads the module into a server's own file, and removes it.

use std::fs::{self, create_dir_all, read_to_string};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlock_harness::{assert_hands_over, module_path, Ask, Server};

const PROGRAM: &str = include_str!("../../../packaging/debian/dlock-module");

/// The path of the module in the package.
const INSTALLED: &str = "/usr/lib/redis/modules/libdlock.so";

/// The program, with a directory for `/etc` and the tested module.
struct Installed {
    etc: PathBuf,
    program: PathBuf,
}

impl Installed {
    fn below(directory: &Path) -> Installed {
        let etc = directory.join("etc");
        for part in ["redis", "dlock"] {
            create_dir_all(etc.join(part)).expect("the directory can be written to");
        }
        assert!(PROGRAM.contains(&format!("\nmodule={INSTALLED}\n")));
        let text = PROGRAM
            .replace(INSTALLED, &module())
            .replace("/etc/", &format!("{}/", etc.display()));
        let program = directory.join("dlock-module");
        fs::write(&program, text).expect("the directory can be written to");
        Installed { etc, program }
    }

    /// Writes the file that the package had until 0.3.0: it loads the module.
    fn former(&self) -> PathBuf {
        let former = self.etc.join("dlock/dlock.conf");
        let text = format!("loadmodule {}\ndlock.max-queue 77\n", module());
        fs::write(&former, text).expect("the directory can be written to");
        former
    }

    /// Returns the program's output, if it succeeds.
    fn try_run(&self, words: &[&str]) -> Result<String, String> {
        let output = Command::new("sh").arg(&self.program).args(words).output();
        let output = output.expect("there is a shell");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        self.try_run(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

/// Returns the tested module, under the name that the program knows.
fn module() -> String {
    let module = module_path().canonicalize().expect("the module is built");
    module.display().to_string()
}

fn loading_lines(file: &Path) -> usize {
    let text = read_to_string(file).expect("the server's file");
    text.lines()
        .filter(|line| line.starts_with("loadmodule "))
        .count()
}

fn path(file: &Path) -> &str {
    file.to_str().expect("a path in UTF-8")
}

/// Makes the server rewrite its file, as Sentinel does with each change of role, and restarts it.
fn rewrite_and_restart(server: &mut Server) {
    server.connection().run("CONFIG REWRITE");
    server.restart();
}

#[test]
fn a_server_starts_again_after_a_rewrite() {
    let directory = tempfile::tempdir().expect("a directory");
    let installed = Installed::below(directory.path());
    let mut server = Server::builder().without_module().start();
    let file = server.config_path();
    installed.run(&["enable", path(&file)]);
    server.restart();
    assert_hands_over(&server, &mut server.connection());
    server.connection().run("CONFIG SET dlock.max-queue 99");
    for _ in 0..2 {
        rewrite_and_restart(&mut server);
        assert_hands_over(&server, &mut server.connection());
        assert_eq!(loading_lines(&file), 1);
        let (_, queue): (String, u64) = server.connection().ask("CONFIG GET dlock.max-queue");
        assert_eq!(queue, 99);
        // A second run adds nothing.
        let before = read_to_string(&file).expect("the server's file");
        installed.run(&["enable", path(&file)]);
        assert_eq!(read_to_string(&file).expect("the server's file"), before);
    }
    // Without the module the server accepts none of its settings.
    installed.run(&["disable", path(&file)]);
    server.restart();
    let error = server.connection().refusal("DLOCK.HELP");
    assert!(error.contains("unknown command"), "{error}");
    rewrite_and_restart(&mut server);
}

/// Servers of 0.3.0 include a file that loads the module: before and after the first rewrite.
#[test]
fn the_line_of_an_included_file_goes_into_the_servers_own() {
    for is_rewritten in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let installed = Installed::below(directory.path());
        let former = installed.former();
        let include = format!("\"{}\"", former.display());
        let server = Server::builder().without_module();
        let mut server = server.config("include", include).start();
        let file = server.config_path();
        if is_rewritten {
            server.connection().run("CONFIG REWRITE");
            // The next start loads both.
            assert_eq!((loading_lines(&file), loading_lines(&former)), (1, 1));
        }
        // The server's file is one of those that the program searches.
        let known = installed.etc.join("redis/redis-6379.conf");
        std::os::unix::fs::symlink(&file, &known).expect("the directory can be written to");
        assert_eq!(installed.run(&["list"]), format!("{}\n", known.display()));
        let said = installed.run(&["enable"]);
        assert!(said.contains("has settings only"), "{said}");
        assert_eq!((loading_lines(&file), loading_lines(&former)), (1, 0));
        for _ in 0..2 {
            server.restart();
            assert_hands_over(&server, &mut server.connection());
            let (_, queue): (String, u64) = server.connection().ask("CONFIG GET dlock.max-queue");
            assert_eq!(queue, 77);
            server.connection().run("CONFIG REWRITE");
            assert_eq!((loading_lines(&file), loading_lines(&former)), (1, 0));
        }
        installed.run(&["disable"]);
        assert_eq!(installed.run(&["list"]), "");
        server.restart();
        server.connection().refusal("DLOCK.HELP");
    }
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let installed = Installed::below(directory.path());
    let (own, other) = (
        directory.path().join("own.conf"),
        directory.path().join("an other.conf"),
    );
    let text = format!(
        "port 1\nInclude \"{}/*other.conf\"",
        directory.path().display()
    );
    fs::write(&own, &text).expect("the directory can be written to");
    fs::write(&other, "LoadModule libdlock.so\n").expect("the directory can be written to");
    let error = installed
        .try_run(&["enable", path(&own)])
        .expect_err("both would load it");
    assert!(error.contains("an other.conf"), "{error}");
    assert_eq!(read_to_string(&own).expect("a file"), text);
    let none = installed
        .try_run(&["enable"])
        .expect_err("no server is there");
    assert!(none.contains("name the server's file"), "{none}");
    let absent = installed.try_run(&["disable", "/nobody/has/this"]);
    assert!(absent
        .expect_err("no such file")
        .contains("/nobody/has/this"));
    installed.try_run(&["nothing"]).expect_err("no such action");
}

/// The administrator's file keeps its mode, and every line that the program did not add.
#[test]
fn a_file_is_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let installed = Installed::below(directory.path());
    let file = installed.etc.join("redis/redis.conf");
    // Other modules and commented lines do not concern the program.
    let text = "port 1\n# loadmodule /x/libdlock.so\nloadmodule /x/other.so\n# dlock.replicas 2\n";
    fs::write(&file, text).expect("the directory can be written to");
    let mode = |file: &Path| file.metadata().expect("a file").permissions().mode() & 0o777;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
    installed.run(&["enable"]);
    let with = read_to_string(&file).expect("a file");
    assert_eq!(with, format!("{text}loadmodule {}\n", module()));
    assert_eq!(mode(&file), 0o640);
    installed.run(&["disable"]);
    assert_eq!(read_to_string(&file).expect("a file"), text);
    let names = fs::read_dir(installed.etc.join("redis")).expect("a directory");
    assert_eq!(names.count(), 1);
}
