//! The nearest of several names to one that does not exist.

/// Names that an error lists at most.
const LISTED: usize = 12;

/// "did you mean NAME", or the list of all `names`; `things` is their noun in the plural.
pub(crate) fn way_out<S: AsRef<str>>(name: &str, names: &[S], things: &str) -> String {
    if let Some(near) = nearest(name, names) {
        return format!("did you mean {near}?");
    }
    if names.is_empty() {
        return format!("there are no {things}");
    }
    let mut listed: Vec<&str> = names.iter().take(LISTED).map(AsRef::as_ref).collect();
    if names.len() > LISTED {
        listed.push("…");
    }
    format!("the {things} are {}", listed.join(", "))
}

/// The name with the smallest edit distance (Damerau and Levenshtein), if that is at most a third of its
/// length. Differences in case cost nothing.
fn nearest<'a, S: AsRef<str>>(name: &str, names: &'a [S]) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&wanted, &other.to_lowercase());
    let (distance, near) = names.iter().map(|other| (distance(other.as_ref()), other.as_ref())).min()?;
    (distance <= (wanted.chars().count() / 3).max(1)).then_some(near)
}
