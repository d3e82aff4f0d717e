//! The name that a misspelt word most likely means, and the error for a name that does not exist.

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

/// An error lists at most this number of names.
const LISTED: usize = 20;

/// The text of an error: there is no `missing`, typed as `wrong`. It lists the names there are, and the nearest one.
///
/// ```
/// # use shardd_api::suggest::no_such;
/// let names = ["cifar10".to_owned(), "digits".to_owned()];
/// let text = no_such("dataset digts", "digts", &names);
/// assert_eq!(text, "there is no dataset digts: there is cifar10, digits; is it digits?");
/// ```
pub fn no_such(missing: &str, wrong: &str, names: &[String]) -> String {
    if names.is_empty() {
        return format!("there is no {missing}, nor any other yet");
    }
    let more = match names.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let listed = names[..names.len().min(LISTED)].join(", ");
    let meant = nearest(wrong, names.iter().map(String::as_str));
    let meant = meant.map(|name| format!("; is it {name}?")).unwrap_or_default();
    format!("there is no {missing}: there is {listed}{more}{meant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_reported_with_the_known_ones() {
        let names = ["cifar10".to_owned(), "digits".to_owned()];
        assert_eq!(
            no_such("dataset digts", "digts", &names),
            "there is no dataset digts: there is cifar10, digits; is it digits?"
        );
        assert_eq!(no_such("dataset x", "x", &names), "there is no dataset x: there is cifar10, digits");
        assert_eq!(no_such("tag x", "x", &[]), "there is no tag x, nor any other yet");
        let many: Vec<String> = (0..1000).map(|n| format!("d{n:03}")).collect();
        let text = no_such("dataset d9999", "d9999", &many);
        assert!(text.contains("d019 and 980 more; is it d999?") && !text.contains("d020"), "{text}");
    }

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
