//! The parts of a page, and the blocks of code in it.

/// A block of code: the text before it, the word after its fence, and its lines.
pub struct Block<'a> {
    pub above: &'a str,
    pub word: &'a str,
    pub lines: Vec<&'a str>,
}

/// A part of a page, in order.
pub enum Part<'a> {
    Section,
    Hidden(&'a str),
    Block(Block<'a>),
}

/// Returns the parts of a page.
pub fn parts(page: &str) -> Vec<Part<'_>> {
    let (mut parts, mut above) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(word) = line.trim_start().strip_prefix("```") {
            let inside = lines.by_ref().map(str::trim);
            let lines = inside.take_while(|line| *line != "```").collect();
            parts.push(Part::Block(Block { above, word, lines }));
        } else if line.starts_with("## ") || line.starts_with("### ") {
            parts.push(Part::Section);
        } else if let Some(hidden) = line.strip_prefix("<!-- ") {
            let hidden = hidden.strip_suffix(" -->").unwrap_or_default();
            if prompt(hidden).is_some() {
                parts.push(Part::Hidden(hidden));
            }
        }
        above = line;
    }
    parts
}

/// Returns the terminal's name and the command typed there.
pub fn prompt(line: &str) -> Option<(&str, &str)> {
    let (terminal, typed) = line.split_once("> ")?;
    let is_name = terminal.bytes().all(|byte| byte.is_ascii_lowercase());
    is_name.then_some((terminal, typed))
}

/// Returns true if the block is what terminals show: it begins with a prompt.
pub fn is_transcript(block: &Block) -> bool {
    block.word.is_empty()
        && block
            .lines
            .first()
            .is_some_and(|line| prompt(line).is_some())
}
