//! The pages of `docs/` stay few and short. (The data in `docs/results` may grow.)

use std::fs;

use dlock_documents::project;

const MOST_PAGES: usize = 16;
const MOST_WORDS: usize = 45_000;

/// Returns what is too much, of pages given by their names and words.
fn excess(pages: &[(String, usize)]) -> Vec<String> {
    let words: usize = pages.iter().map(|(_, words)| words).sum();
    let too_many = |count: usize, most: usize, what: &str| {
        (count > most).then(|| format!("{count} {what}, at most {most}: merge or shorten some"))
    };
    [
        too_many(pages.len(), MOST_PAGES, "pages"),
        too_many(words, MOST_WORDS, "words"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// `cargo test --test documents size -- --nocapture` prints the words of each page.
#[test]
fn the_pages_are_few_and_short() {
    let entries = fs::read_dir(project().join("docs")).expect("the documents");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut pages: Vec<(String, usize)> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a page");
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (name.into_owned(), text.split_whitespace().count())
        })
        .collect();
    pages.sort_by_key(|(_, words)| std::cmp::Reverse(*words));
    for (name, words) in &pages {
        println!("{words:6} {name}");
    }
    let words: usize = pages.iter().map(|(_, words)| words).sum();
    println!("{words:6} words on {} pages", pages.len());
    assert!(pages.len() > 10, "{pages:?}");
    assert_eq!(excess(&pages), [""; 0], "{pages:#?}");
}

#[test]
fn too_many_pages_and_words_are_found() {
    let page = |words| ("page.md".to_owned(), words);
    assert_eq!(
        excess(&vec![page(MOST_WORDS / MOST_PAGES); MOST_PAGES]),
        [""; 0]
    );
    let pages = vec![page(1); MOST_PAGES + 1];
    assert_eq!(
        excess(&pages),
        [format!(
            "{} pages, at most {MOST_PAGES}: merge or shorten some",
            MOST_PAGES + 1
        )]
    );
    let words = [page(MOST_WORDS), page(1)];
    assert_eq!(
        excess(&words),
        [format!(
            "{} words, at most {MOST_WORDS}: merge or shorten some",
            MOST_WORDS + 1
        )]
    );
}
