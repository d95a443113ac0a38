//! Every link in the pages leads to an existing file, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path, PathBuf};

use dlock_documents::project;

const LONGEST_README: usize = 150;

/// The tables and plots of long runs, and their pages.
const RESULTS: &str = "docs/results";
/// The most lines of committed results, without the written pages.
const MOST_RESULTS: usize = 950;
const WRITTEN: [&str; 4] = ["benchmark.md", "chaos.md", "field.md", "model.md"];

/// Returns the files of a directory, by their paths in the project.
fn files(directory: &str) -> impl Iterator<Item = PathBuf> + '_ {
    let entries = fs::read_dir(project().join(directory)).expect("a directory");
    entries.map(move |entry| Path::new(directory).join(entry.expect("an entry").file_name()))
}

/// Returns the documents, by their paths in the project.
fn documents() -> BTreeMap<PathBuf, String> {
    let names = ["docs", RESULTS].into_iter().flat_map(files);
    let pages = names.filter(|name| name.extension().is_some_and(|end| end == "md"));
    let readmes = ["README.md", "README.zh-CN.md"].map(PathBuf::from);
    let all = pages.chain(readmes);
    all.map(|name| {
        let text = fs::read_to_string(project().join(&name)).expect("a document");
        (name, text)
    })
    .collect()
}

/// Returns the lines of a page that are no code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns a line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Returns the targets of the links of a page, images included.
fn links(page: &str) -> Vec<String> {
    let targets = |line: &str| -> Vec<String> {
        let rest = without_code(line);
        let opened = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')];
        let ends = opened.iter().flat_map(|(begin, end)| {
            let ends = rest.split(begin).skip(1);
            ends.map(|target| target.split(*end).next().unwrap_or_default().to_owned())
        });
        ends.collect()
    };
    // A link may be broken between two lines.
    let text: Vec<&str> = prose(page).collect();
    text.join("\n")
        .split("\n\n")
        .flat_map(|paragraph| targets(&paragraph.replace('\n', " ")))
        .collect()
}

/// Returns the names that links can lead to: of the headings of a page, as a forge makes them, and of `<a id="…">`, which keeps
/// the name of a section that has moved.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut times: HashMap<String, u32> = HashMap::new();
    let headings = prose(page).filter(|line| line.trim_start_matches('#').starts_with(' '));
    let headings = headings.filter(|line| line.starts_with('#'));
    let mut anchor = |line: &str| {
        let text = line.trim_matches(['#', ' ']).to_lowercase();
        let is_kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
        let name: String = text.chars().filter(is_kept).collect();
        let name = name.replace(' ', "-");
        let before = times.entry(name.clone()).or_default();
        *before += 1;
        match *before {
            1 => name,
            again => format!("{name}-{}", again - 1),
        }
    };
    let mut names: BTreeSet<String> = headings.map(&mut anchor).collect();
    let kept = prose(page).flat_map(|line| line.split("<a id=\"").skip(1));
    names.extend(kept.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    names
}

/// Joins paths without the file system; none for a link out of the project.
fn resolve(page: &Path, target: &str) -> Option<PathBuf> {
    let mut path = page.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

/// Returns the links of a page that lead nowhere. `read` returns a file of the project, or none if it does not exist.
fn broken(page: &Path, text: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let is_broken = |link: &String| {
        if link.starts_with("https://") {
            return false;
        }
        let (file, anchor) = match link.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (link.as_str(), None),
        };
        let there = match file {
            "" => Some(text.to_owned()),
            _ => resolve(page, file).and_then(|path| read(&path)),
        };
        match (there, anchor) {
            (None, _) => true,
            (Some(_), None) => file.is_empty(),
            (Some(there), Some(anchor)) => !anchors(&there).contains(anchor),
        }
    };
    links(text).into_iter().filter(is_broken).collect()
}

/// Returns a file's text; a directory exists, but has no headings.
fn read(path: &Path) -> Option<String> {
    let path = project().join(path);
    if path.is_dir() {
        return Some(String::new());
    }
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the pages of the clients, and those of the project itself.
fn other_pages() -> impl Iterator<Item = (PathBuf, String)> {
    let languages = files("clients").map(|folder| folder.join("README.md"));
    let others = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "clients/DESIGN.md",
        "evidence/README.md",
    ];
    let others = others.map(PathBuf::from);
    let pages = languages.chain(others);
    pages.filter_map(|name| {
        let text = fs::read_to_string(project().join(&name)).ok()?;
        Some((name, text))
    })
}

#[test]
fn every_link_leads_somewhere() {
    let mut seen = 0;
    for (page, text) in documents().into_iter().chain(other_pages()) {
        seen += links(&text).len();
        let broken = broken(&page, &text, read);
        assert!(broken.is_empty(), "{}: {broken:#?}", page.display());
    }
    assert!(seen > 100, "{seen} links are found");
}

#[test]
fn every_document_is_found_from_the_readme() {
    let documents = documents();
    let readme = Path::new("README.md");
    let linked = |page: &Path| -> Vec<PathBuf> {
        let links = documents.get(page).map(|text| links(text));
        let links = links.unwrap_or_default();
        let files = links.iter().filter_map(|link| link.split('#').next());
        files.filter_map(|file| resolve(page, file)).collect()
    };
    // Some pages are for readers of another page, and data for those of a third.
    let (mut found, mut last) = (BTreeSet::new(), vec![readme.to_owned()]);
    for _ in 0..3 {
        last = last.iter().flat_map(|page| linked(page)).collect();
        found.extend(last.iter().cloned());
    }
    let is_page = |page: &&PathBuf| **page != readme;
    let mut missing = documents.keys().filter(is_page);
    let missing = missing.find(|page| !found.contains(*page));
    assert_eq!(missing, None);
}

/// Returns the sections that a list of contents leaves out. A page has such a list if its first lines link to half of its
/// sections.
fn unlisted(page: &str) -> Vec<String> {
    let (head, _) = page.split_once("\n## ").unwrap_or((page, ""));
    let listed: BTreeSet<String> = links(head).into_iter().collect();
    let headings: Vec<&str> = prose(page).filter(|line| line.starts_with("## ")).collect();
    let sections = anchors(&headings.join("\n"));
    let missing = |name: &String| !listed.contains(&format!("#{name}"));
    let unlisted: Vec<String> = sections
        .iter()
        .filter(|name| missing(name))
        .cloned()
        .collect();
    let has_contents = unlisted.len() * 2 <= sections.len();
    if has_contents {
        unlisted
    } else {
        Vec::new()
    }
}

#[test]
fn contents_name_every_section() {
    for (page, text) in documents() {
        let unlisted = unlisted(&text);
        assert!(unlisted.is_empty(), "{}: {unlisted:?}", page.display());
    }
}

#[test]
fn a_section_that_no_contents_name_is_found() {
    let page =
        "# Page\n\n[One](#one) · [Two words](#two-words)\n\n## One\n\n## Two words\n\n## Three\n";
    assert_eq!(unlisted(page), ["three"]);
    assert!(unlisted(&page.replace("Two words](#two-words)", "elsewhere](#x)")).is_empty());
}

#[test]
fn the_readme_is_short() {
    let lines = documents()[Path::new("README.md")].lines().count();
    assert!(lines <= LONGEST_README, "{lines} lines");
}

#[test]
fn results_are_what_the_documents_show() {
    let pages: String = documents().into_values().collect();
    let mut lines = 0;
    for file in files(RESULTS) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        assert!(pages.contains(&*name), "{name}: no page shows it");
        if !WRITTEN.contains(&&*name) {
            lines += read(&file).expect("a result").lines().count();
        }
    }
    assert!((100..=MOST_RESULTS).contains(&lines), "{lines} lines");
}

/// An alert names the section with its remedy.
#[test]
fn every_alert_has_a_runbook() {
    let alerts = include_str!("../../../observability/alerts.yml");
    let runbook = |line: &str| {
        let link = line.trim().strip_prefix("runbook_url: ")?;
        Some(format!("[runbook]({})\n\n", link.trim_matches('"')))
    };
    let runbooks: Vec<String> = alerts.lines().filter_map(runbook).collect();
    assert_eq!(runbooks.len(), alerts.matches("- alert: ").count());
    assert!(runbooks.len() > 15);
    let none = [""; 0];
    assert_eq!(
        broken(Path::new("alerts.yml"), &runbooks.concat(), read),
        none
    );
}

#[test]
fn a_broken_link_is_found() {
    let files = |path: &Path| match path.to_str()? {
        "docs/other.md" => Some("# Other\n\n<a id=\"kept\"></a>\n## Two words\n".to_owned()),
        "docs/plot.svg" | "LICENSE" => Some(String::new()),
        _ => None,
    };
    let page = "# Page\n\
        ## `DLOCK.X`: what, and *why*\n\
        ### Twice\n### Twice\n\
        ```\n# no heading\n[no link](nowhere.md)\n```\n\
        `[code](nowhere.md)` [site](https://example.org/#none)\n\
        [1](other.md) [2](other.md#two-words) [3](#dlockx-what-and-why) [4](#twice-1) ![5](plot.svg) [6](../LICENSE) [7](other.md#kept)\n\
        [`a`](other.md#none) [b](#no-heading) [c](#twice-2) [d](missing.md) ![e](missing.svg) [f](../../LICENSE) [g]() [h\n\
        i](none.md)\n\
        <picture><source srcset=\"narrow.svg\"><img src=\"plot.svg\"></picture>\n";
    let expected = [
        "other.md#none",
        "#no-heading",
        "#twice-2",
        "missing.md",
        "missing.svg",
        "../../LICENSE",
        "",
        "none.md",
        "narrow.svg",
    ];
    assert_eq!(broken(Path::new("docs/page.md"), page, files), expected);
}
