//! Values that are texts in JSON and on command lines: what parses them and what prints them is all that serde needs.

/// Lets `#[serde(try_from = "String", into = "String")]` use a type's `FromStr` and `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

pub use as_text;
