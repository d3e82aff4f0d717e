//! Commands in the documents, run by tests as they are written there.

/// A fenced block of shell.
pub struct Block {
    /// The first word after `sh`: whose it is.
    pub label: String,
    /// Whether it is for another terminal, and keeps running.
    pub is_background: bool,
    /// The commands.
    pub text: String,
}

/// The blocks of a page that begin with "```sh LABEL" or "```sh LABEL background", for labels that `wanted` wants, in order.
pub fn blocks(page: &str, wanted: impl Fn(&str) -> bool) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```sh ") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let mut words = kind.split_whitespace();
        let label = words.next().unwrap_or_default().to_owned();
        let is_background = words.next() == Some("background");
        if wanted(&label) {
            blocks.push(Block { label, is_background, text: text.join("\n") });
        }
    }
    blocks
}
