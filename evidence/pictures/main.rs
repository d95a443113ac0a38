//! Draws the pictures of the documents, `docs/pictures/*.svg`, from the texts next to them (see [`draw`]).
//!
//! `pictures` writes them; `pictures --check` fails if one differs from its text.

mod draw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let check = std::env::args().nth(1).as_deref() == Some("--check");
    let project = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut sources: Vec<PathBuf> = fs::read_dir(project.join("docs/pictures"))
        .expect("docs/pictures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    sources.sort();
    let mut wrong = 0;
    for source in &sources {
        let text = fs::read_to_string(source).expect("a text");
        let picture = match draw::picture(&text, &project) {
            Ok(picture) => picture,
            Err(error) => {
                eprintln!("{}: {error}", source.display());
                wrong += 1;
                continue;
            }
        };
        let path = source.with_extension("svg");
        if !check {
            fs::write(&path, picture).expect("docs/pictures can be written to");
        } else if !is_drawn(&path, &picture) {
            eprintln!("{}: make pictures draws another one", path.display());
            wrong += 1;
        }
    }
    println!("{} pictures", sources.len());
    match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn is_drawn(path: &Path, picture: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|there| there == picture)
}
