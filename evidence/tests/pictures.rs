//! The pictures of the documents (`make pictures`) agree with their texts and data, and are legible.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

#[path = "../pictures/draw.rs"]
mod draw;

fn project() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn every_picture_is_drawn_from_its_text() {
    let output = Command::new(env!("CARGO_BIN_EXE_pictures"))
        .arg("--check")
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
}

/// Nothing is smaller than 12 pixels at the width of a page, or of a narrow screen, and nothing lies below the picture. Both colour
/// schemes have their colours.
#[test]
fn every_picture_is_legible() {
    let mut seen = 0;
    for entry in fs::read_dir(project().join("docs/pictures")).expect("the pictures") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "svg") {
            continue;
        }
        let picture = fs::read_to_string(&path).expect("a picture");
        seen += 1;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let width = if name.contains("-narrow") { 400 } else { 800 };
        let is_wide = picture.contains(&format!("width=\"{width}\""));
        assert!(is_wide, "{name} is not {width} wide");
        assert!(picture.contains("prefers-color-scheme:dark"));
        assert!(picture.contains("<title>"), "{}", path.display());
        assert!(!picture.contains("]("), "{name} has a link's address");
        let (_, view) = picture.split_once("viewBox=\"0 0 ").expect("a size");
        let height = view
            .split(['"', ' '])
            .nth(1)
            .and_then(|text| text.parse::<f64>().ok());
        for place in picture.split(" y=\"").skip(1) {
            let y = place
                .split('"')
                .next()
                .and_then(|text| text.parse::<f64>().ok());
            assert!(y < height, "{name}: {y:?} lies below {height:?}");
        }
        for size in picture.split("font:").chain(picture.split("font-size:")) {
            let Some((size, _)) = size.split_once("px") else {
                continue;
            };
            if let Ok(size) = size.parse::<f64>() {
                assert!(size >= 12.0, "{}: {size}", path.display());
            }
        }
    }
    assert!(seen >= 9, "{seen} pictures");
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    for wrong in [
        "box 1 2 3 good",
        "circle 1 2 3",
        "text a 2 left x",
        "bars 1 2 3 4 README.md | none",
        "column 1 2 3 4 9 docs/results/plots.md | server CPU",
        "column 1 2 3 4 1 README.md | none",
        "curves 1 2 3 4 right round docs/results/plots.md | wait p99",
        "curves 1 2 3 4 above linear docs/results/plots.md | wait p99",
    ] {
        let text = format!("size 800 100\ntitle A picture\n{wrong}\n");
        let error = draw::picture(&text, &project()).expect_err(wrong);
        assert!(error.contains(wrong), "{error}");
    }
}
