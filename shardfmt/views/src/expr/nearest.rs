//! The nearest of several names to one that does not exist.

/// Names that an error lists at most.
const LISTED: usize = 12;

/// Characters of the longest name for which a near one is looked for.
const LONGEST: usize = 1000;

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
    let length = wanted.chars().count();
    let most = (length / 3).max(1);
    // The table of a distance takes memory for the product of both lengths. Names that differ more in length are not near.
    let distance = |other: &str| {
        let other = other.to_lowercase();
        let is_near = length <= LONGEST && other.chars().count().abs_diff(length) <= most;
        is_near.then(|| strsim::damerau_levenshtein(&wanted, &other))
    };
    let near = names.iter().filter_map(|other| Some((distance(other.as_ref())?, other.as_ref()))).min();
    near.filter(|(distance, _)| *distance <= most).map(|(_, near)| near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_offered_and_a_long_one_takes_no_memory() {
        assert_eq!(way_out("lnag", &["text", "lang"], "columns"), "did you mean lang?");
        let long = "x".repeat(1 << 20);
        assert_eq!(
            way_out(&long, &["y".repeat(1000)], "columns"),
            format!("the columns are {}", "y".repeat(1000))
        );
    }
}
