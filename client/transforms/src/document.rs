//! The reading and writing of chains as documents, for every kind of chain: of pictures here, of sounds in `shardd-audio`.

use std::fmt;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};

/// The version of the JSON.
pub const VERSION: u32 = 1;

/// The arguments of an operation, by their names.
pub type Arguments = Map<String, Json>;

/// The part of the document that every version has.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "newest")]
    version: u32,
}

fn newest() -> u32 {
    VERSION
}

/// The version of a chain's JSON; [`VERSION`] if it names none.
///
/// # Errors
/// The document is not a JSON object, or its version is not a number.
pub fn version(json: &str) -> serde_json::Result<u32> {
    serde_json::from_str(json).map(|Versioned { version }| version)
}

/// The name of an operation, which is its `type`, and its arguments.
///
/// # Errors
/// If it is no object with a name.
pub fn operation<'de, D: Deserializer<'de>>(from: D) -> Result<(String, Arguments), D::Error> {
    let mut arguments = Map::deserialize(from)?;
    match arguments.remove("type") {
        Some(Json::String(name)) => Ok((name, arguments)),
        Some(other) => {
            Err(D::Error::custom(format!("\"type\" is {other}, and has to be the name of an operation")))
        }
        None => Err(D::Error::custom("an operation has no \"type\": name the operation there")),
    }
}

/// The operation of this name with these arguments.
///
/// # Errors
/// A text that names the operation and the argument that it does not have.
pub fn with_arguments<T: DeserializeOwned>(name: &str, arguments: Arguments) -> Result<T, String> {
    if let Some(number) = arguments.values().find_map(too_large) {
        return Err(format!("{name}: {number} is too large: the largest number is {:e}", f32::MAX));
    }
    serde_json::from_value(Json::Object(arguments)).map_err(|error| format!("{name}: {error}"))
}

/// A number that 32 bits hold only as infinity, which JSON does not have.
fn too_large(value: &Json) -> Option<&serde_json::Number> {
    match value {
        Json::Number(number) => {
            Some(number).filter(|number| number.as_f64().is_none_or(|value| (value as f32).is_infinite()))
        }
        Json::Array(elements) => elements.iter().find_map(too_large),
        Json::Object(members) => members.values().find_map(too_large),
        Json::Null | Json::Bool(_) | Json::String(_) => None,
    }
}

/// Writes an operation as a call in Python.
///
/// # Errors
/// If it is no JSON, or cannot be written.
pub fn write_call(f: &mut fmt::Formatter<'_>, name: &str, op: &impl Serialize) -> fmt::Result {
    let json = serde_json::to_value(op).map_err(|_| fmt::Error)?;
    let arguments = json.as_object().into_iter().flatten().filter(|(name, _)| *name != "type");
    let arguments: Vec<String> = arguments.map(|(name, value)| format!("{name}={value}")).collect();
    write!(f, "{name}({})", arguments.join(", "))
}

/// Nearest of some names to one that is not among them.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    names.into_iter().max_by(|one, other| {
        let [one, other] = [one, other].map(|known| strsim::jaro_winkler(&lower, &known.to_lowercase()));
        one.total_cmp(&other)
    })
}

/// The probability of each of some operations, of which one is applied: `p` divided by its sum, or equal ones. Their sum is 1.
///
/// # Errors
/// A text that ends the sentence that begins with the operation's name.
pub fn probabilities(p: Option<&[f64]>, count: usize) -> Result<Vec<f64>, String> {
    let p = p.map_or_else(|| vec![1.0; count], <[f64]>::to_vec);
    let sum: f64 = p.iter().sum();
    if count == 0 || p.len() != count || p.iter().any(|p| *p < 0.0) || !sum.is_finite() || sum <= 0.0 {
        return Err(format!(
            "has {count} operations and {} probabilities: give one from 0 for each of at least one",
            p.len()
        ));
    }
    Ok(p.into_iter().map(|p| p / sum).collect())
}

/// The index of the one into whose part of the sum of [`probabilities`] this number falls.
///
/// # Panics
/// If there are none.
pub fn choose(probabilities: &[f64], number: f64) -> usize {
    let mut below = 0.0;
    let chosen = probabilities.iter().position(|p| {
        below += p;
        number < below
    });
    chosen.unwrap_or(probabilities.len() - 1)
}

#[cfg(test)]
mod tests {
    use crate::Chain;

    #[test]
    fn a_number_beyond_32_bits_is_refused_wherever_it_stands() {
        for fill in ["1e39", "[1, -1e39, 3]"] {
            let json = format!(r#"[{{"type": "RandomRotation", "degrees": 30, "fill": {fill}}}]"#);
            let refused = json.parse::<Chain>().expect_err("it has no JSON of its own").to_string();
            assert!(refused.contains("is too large"), "{refused}");
        }
        let largest = r#"[{"type": "RandomRotation", "degrees": 30, "fill": 3.4028234e38}]"#;
        let chain: Chain = largest.parse().expect("a number of 32 bits");
        assert_eq!(chain.to_json().parse::<Chain>().expect("its own JSON"), chain);
    }
}
