//! Patterns of parameter names, by which parameters are frozen or left out of a file. Pure.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A pattern of parameter names. `*` stands for any characters, `?` for one, `[0-3]` for one of a set and
/// `[!0-3]` for one outside it. A pattern matches a whole name, or the name of a module, which stands for all of
/// the module's parameters.
///
/// ```
/// use shardd_trainer::NamePattern;
///
/// let pattern: NamePattern = "layer[0-2]".parse()?;
/// assert!(pattern.matches("layer2.attention.mix.weight"));
/// assert!(!pattern.matches("layer20.attention.mix.weight"));
/// assert!("*.bias".parse::<NamePattern>()?.matches("layer0.widen.bias"));
/// # Ok::<(), shardd_trainer::name_pattern::PatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    glyphs: Vec<Glyph>,
}

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no pattern of parameter names: {reason}")]
pub struct PatternError {
    text: String,
    reason: &'static str,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Glyph {
    /// Any characters, or none.
    Any,
    /// One character.
    One,
    /// One character of these ranges, or outside all of them.
    Set { is_negated: bool, ranges: Vec<(char, char)> },
    /// This character.
    Exactly(char),
}

impl Glyph {
    /// Whether it stands for this one character.
    fn takes(&self, found: char) -> bool {
        match self {
            Glyph::Any => false,
            Glyph::One => true,
            Glyph::Set { is_negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&found)) != *is_negated
            }
            Glyph::Exactly(expected) => *expected == found,
        }
    }
}

impl NamePattern {
    /// Whether it matches the parameter's name, or that of a module around it.
    pub fn matches(&self, name: &str) -> bool {
        let modules = name.match_indices('.').map(|(end, _)| &name[..end]);
        modules.chain([name]).any(|name| self.matches_whole(name))
    }

    fn matches_whole(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut glyph) = (0, 0);
        // Where the last `*` is, and up to which character it has been tried.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.glyphs.get(glyph) {
                Some(Glyph::Any) => {
                    star = Some((glyph, at));
                    glyph += 1;
                }
                Some(one) if one.takes(name[at]) => (at, glyph) = (at + 1, glyph + 1),
                _ => {
                    let Some((place, tried)) = star else { return false };
                    star = Some((place, tried + 1));
                    (at, glyph) = (tried + 1, place + 1);
                }
            }
        }
        self.glyphs[glyph..].iter().all(|glyph| *glyph == Glyph::Any)
    }
}

impl FromStr for NamePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<NamePattern, PatternError> {
        let refuse = |reason| PatternError { text: text.to_owned(), reason };
        if text.is_empty() {
            return Err(refuse("it is empty"));
        }
        let mut glyphs = Vec::new();
        let mut left = text.chars().peekable();
        while let Some(next) = left.next() {
            glyphs.push(match next {
                '*' => Glyph::Any,
                '?' => Glyph::One,
                '[' => {
                    let is_negated = left.next_if_eq(&'!').is_some();
                    let mut ranges = Vec::new();
                    loop {
                        match left.next() {
                            None => return Err(refuse("a [ has no ]")),
                            Some(']') => break,
                            Some(first) if left.next_if_eq(&'-').is_some() => match left.next() {
                                Some(last) if last != ']' && first <= last => ranges.push((first, last)),
                                _ => {
                                    return Err(refuse("a range between [ and ] has no end after its start"));
                                }
                            },
                            Some(one) => ranges.push((one, one)),
                        }
                    }
                    if ranges.is_empty() {
                        return Err(refuse("nothing is between [ and ]"));
                    }
                    Glyph::Set { is_negated, ranges }
                }
                other => Glyph::Exactly(other),
            });
        }
        Ok(NamePattern { text: text.to_owned(), glyphs })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The first of the patterns that matches none of the names.
pub(crate) fn without_match<'a>(patterns: &'a [NamePattern], names: &[&str]) -> Option<&'a NamePattern> {
    patterns.iter().find(|pattern| !names.iter().any(|name| pattern.matches(name)))
}

/// Names for an error message, of which a long list is cut.
pub(crate) fn listed(names: &[&str]) -> String {
    const MOST: usize = 200;
    let more = names.len().saturating_sub(MOST);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown}, and {more} more") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<NamePattern>().unwrap().matches(name)
    }

    #[test]
    fn a_pattern_is_of_names_and_of_modules() {
        for (pattern, name, expected) in [
            ("embed", "embed.tokens", true),
            ("embed", "embedding.tokens", false),
            ("embed.tokens", "embed.tokens", true),
            ("tokens", "embed.tokens", false),
            ("*", "head.norm.gamma", true),
            ("*.bias", "layer3.attention.mix.bias", true),
            ("*.bias", "layer3.attention.mix.weight", false),
            ("layer?", "layer3.widen.weight", true),
            ("layer?", "layer13.widen.weight", false),
            ("layer[0-24]", "layer4.widen.weight", true),
            ("layer[!0-2]", "layer3.widen.weight", true),
            ("layer[!0-2]", "layer2.widen.weight", false),
            ("l*r*.w*n.*t", "layer12.widen.weight", true),
            ("*a*b", "aab.aa", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} of {name}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_its_text() {
        for text in ["", "layer[0", "layer[]", "layer[2-0]", "layer[2-]"] {
            let error = text.parse::<NamePattern>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_a_pattern_of_itself(name in "[a-z0-9_.]{1,20}") {
            prop_assert!(matches(&name, &name));
        }

        #[test]
        fn characters_may_be_left_to_a_star(name in "[a-c.]{1,12}", from in 0usize..12, count in 0usize..12) {
            let from = from.min(name.len());
            let to = (from + count).min(name.len());
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(matches(&pattern, &name), "{pattern}");
        }
    }
}
