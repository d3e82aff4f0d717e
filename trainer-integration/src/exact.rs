//! Numbers that keep all of their bits in JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number that keeps all of its bits in JSON, also where it is infinite or none.
#[derive(Clone, Copy, Debug)]
pub struct Exact(pub f64);

impl PartialEq for Exact {
    /// By bits: NaN is equal to itself here.
    fn eq(&self, other: &Exact) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", self.0.to_bits()))
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Exact, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bits = u64::from_str_radix(&text, 16).map_err(de::Error::custom)?;
        Ok(Exact(f64::from_bits(bits)))
    }
}
