//! SPDX licence expressions, and the older form with slashes.

use std::collections::BTreeSet;

/// Whether the licences in `allowed` are enough for a crate under `expression`.
pub(crate) fn is_met(expression: &str, allowed: &BTreeSet<String>) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met = any(&mut rest, allowed)?;
    match rest {
        [] => Ok(met),
        [word, ..] => Err(format!("{word} is unexpected")),
    }
}

fn any(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    let mut met = all(words, allowed)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all(words, allowed)?;
    }
    Ok(met)
}

fn all(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    let mut met = one(words, allowed)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed)?;
    }
    Ok(met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any(words, allowed)?;
            let [")", rest @ ..] = *words else { return Err("a parenthesis is not closed".into()) };
            *words = rest;
            Ok(met)
        }
        [name, "WITH", exception, rest @ ..] => {
            *words = rest;
            Ok(allowed.contains(&format!("{name} WITH {exception}")))
        }
        [name, rest @ ..] if !matches!(*name, "AND" | "OR" | "WITH" | ")") => {
            *words = rest;
            Ok(allowed.contains(*name))
        }
        _ => Err("a licence is missing".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn licence_expressions_are_read_as_spdx_means_them() {
        let allowed: BTreeSet<String> =
            ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(String::from).into();
        let is_met = |expression| super::is_met(expression, &allowed);
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Unlicense/MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(is_met(expression), Ok(true), "{expression}");
        }
        // AND binds more tightly than OR, and an exception makes another licence of it.
        for expression in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "GPL-3.0 OR MIT AND GPL-2.0",
            "Apache-2.0",
            "MIT WITH LLVM-exception",
        ] {
            assert_eq!(is_met(expression), Ok(false), "{expression}");
        }
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "AND"] {
            assert!(is_met(expression).is_err(), "{expression}");
        }
    }
}
