//! What a misspelt word most likely means. Knows nothing of what the words are for.

/// Words longer than this are not typed by hand.
const LONGEST: usize = 80;

/// The known word that takes the fewest changes (of a letter, or of two that follow each other) to come from `wrong`,
/// unless that is as good as another word: a third of its letters may be wrong. The first of several.
///
/// ```
/// # use shardd_api::suggest::nearest;
/// assert_eq!(nearest("digtis", ["cifar10", "digits"]), Some("digits"));
/// assert_eq!(nearest("imagenet", ["cifar10", "digits"]), None);
/// ```
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = wrong.chars().take(LONGEST + 1).count();
    if letters > LONGEST {
        return None;
    }
    let near = known.into_iter().map(|word| (strsim::osa_distance(wrong, word), word));
    let (distance, word) = near.min_by_key(|(distance, _)| *distance)?;
    (1..=letters.div_ceil(3)).contains(&distance).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_a_word_may_be_wrong() {
        let known = ["cifar10", "digits", "digits-test", "v1"];
        let near = |wrong| nearest(wrong, known);
        assert_eq!(near("cifar"), Some("cifar10"));
        assert_eq!(near("digtis"), Some("digits"));
        assert_eq!(near("digits-tst"), Some("digits-test"));
        assert_eq!(near("v2"), Some("v1"));
        assert_eq!(near("imagenet"), None);
        assert_eq!(near(""), None);
        assert_eq!(nearest("a", []), None);
        assert_eq!(nearest(&"x".repeat(81), [&*"x".repeat(80)]), None);
    }
}
