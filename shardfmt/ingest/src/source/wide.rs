//! Integers in JSON that no integer of 64 bits holds: parsers make floats of them, and say nothing. Pure: the text of an
//! object in, its numbers out.

/// Numbers of fewer digits fit.
const FEWEST_DIGITS: usize = 19;

/// The integers of an object, which is known to be JSON, that 64 bits do not hold: each with the key that leads to it.
pub(super) fn integers(object: &[u8]) -> impl Iterator<Item = (String, &str)> {
    // Hardly any line has one.
    let text = if has_long_number(object) { object } else { &[] };
    Integers { text, at: 0, depth: 0, key: None, last: None }
}

fn has_long_number(text: &[u8]) -> bool {
    let mut digits = 0;
    text.iter().any(|byte| {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        digits >= FEWEST_DIGITS
    })
}

struct Integers<'t> {
    text: &'t [u8],
    at: usize,
    /// How many brackets are open.
    depth: usize,
    /// The key of the outermost object that the value here is of.
    key: Option<&'t [u8]>,
    /// The last text at that depth, which is a key if a colon follows.
    last: Option<&'t [u8]>,
}

impl<'t> Iterator for Integers<'t> {
    type Item = (String, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(&byte) = self.text.get(self.at) {
            let start = self.at;
            self.at += 1;
            match byte {
                b'"' => {
                    self.at = end_of_text(self.text, self.at);
                    if self.depth == 1 {
                        self.last = Some(&self.text[start..self.at]);
                    }
                }
                b':' if self.depth == 1 => self.key = self.last.take(),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b'-' | b'0'..=b'9' => {
                    let is_of_number =
                        |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                    self.at += self.text[self.at..].iter().take_while(|byte| is_of_number(byte)).count();
                    let number = str::from_utf8(&self.text[start..self.at]).expect("ASCII");
                    let is_integer = !number.contains(['.', 'e', 'E']);
                    if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                        let key = self.key.and_then(|key| serde_json::from_slice(key).ok());
                        return Some((key.unwrap_or_default(), number));
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Where a text ends whose quote lies before `from`.
fn end_of_text(text: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => return at,
            b'\\' => at += 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[\"\\\\0-9:{}]{0,30}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a\"\\\\:]{0,2}", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// A number that serde can hold is never taken for too wide, and a wider one is found in any place.
        #[test]
        fn just_what_64_bits_do_not_hold_is_found(before in value(), after in value(), beyond: u64, is_negative: bool) {
            let digits = format!("{}{}", if is_negative { "-" } else { "" }, u128::from(u64::MAX) + 1 + u128::from(beyond));
            let text = json!({ "x": before, "y\"": ["HERE", { "z": after }] }).to_string();
            prop_assert_eq!(integers(text.as_bytes()).count(), 0);
            let text = text.replace("\"HERE\"", &digits);
            let found: Vec<_> = integers(text.as_bytes()).collect();
            prop_assert_eq!(found, vec![("y\"".to_owned(), digits.as_str())]);
        }
    }
}
