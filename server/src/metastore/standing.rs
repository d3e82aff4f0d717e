//! Where a node's metadata is: where it has been so far, unless there is none yet; and by which way it may be reached.
//!
//! Metadata does not move with the flag, so a node with another place refuses to start: it would find an
//! empty cluster there. But a place that the metadata was moved from is named by settings until they are changed, and a
//! node that is restarted meanwhile starts. The list of members of an etcd may change at any time.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use shardd_certificates::write_private;

use tracing::warn;

use super::{MetastoreUrl, OpenError};

/// In the data directory of a first node whose metadata is in etcd or in the store: which.
const KEPT: &str = "metastore";
/// In the data directory: the places that the metadata was in while this node used it, a line for each.
const LEFT: &str = "metastore.left";

/// Where the metadata of the first node over `data` is. Remembered there unless it is sled. Blocks.
pub(crate) fn of_first(data: &Path, asked: Option<&MetastoreUrl>) -> Result<MetastoreUrl, OpenError> {
    let path = data.join(KEPT);
    let unknown = |reason: String| OpenError::Unknown { path: path.clone(), reason };
    let kept = match fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().parse().map_err(unknown)?),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unknown(error.to_string())),
        Err(_) if data.join("meta").exists() => Some(MetastoreUrl::Sled),
        Err(_) => None,
    };
    let settled = settle(data, kept.as_ref(), asked)?;
    if settled != MetastoreUrl::Sled && kept.as_ref() != Some(&settled) {
        remember(data, &settled)?;
    }
    Ok(settled)
}

/// Makes the first node over `data` start with its metadata in this place, which is not sled. Blocks.
pub(crate) fn remember(data: &Path, place: &MetastoreUrl) -> Result<(), OpenError> {
    let path = data.join(KEPT);
    let written = write_private(&path, format!("{place}\n").as_bytes());
    written.map_err(|error| OpenError::Unknown { path, reason: error.to_string() })
}

/// Lets the node over `data` start though its settings name this place, which the metadata has left. Blocks.
pub(crate) fn leave(data: &Path, place: &MetastoreUrl) -> Result<(), OpenError> {
    let (path, mut left) = (data.join(LEFT), left(data));
    if left.contains(place) {
        return Ok(());
    }
    left.push(place.clone());
    let text: String = left.iter().map(|place| format!("{place}\n")).collect();
    let written = write_private(&path, text.as_bytes());
    written.map_err(|error| OpenError::Unknown { path, reason: error.to_string() })
}

fn left(data: &Path) -> Vec<MetastoreUrl> {
    let text = fs::read_to_string(data.join(LEFT)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The place of the metadata of the joined node over `data`. `named` is what the first node named when this node joined, or where
/// the metadata has moved since. Without it, the first node keeps the metadata. Blocks.
pub(crate) fn of_joined(
    data: &Path,
    named: Option<&MetastoreUrl>,
    asked: Option<&MetastoreUrl>,
) -> Result<MetastoreUrl, OpenError> {
    settle(data, Some(named.unwrap_or(&MetastoreUrl::Sled)), asked)
}

fn settle(
    data: &Path,
    kept: Option<&MetastoreUrl>,
    asked: Option<&MetastoreUrl>,
) -> Result<MetastoreUrl, OpenError> {
    match (kept, asked) {
        (Some(kept), None) => Ok(kept.clone()),
        (Some(kept), Some(asked))
            if !is_same_place(kept, asked) && left(data).iter().any(|left| is_same_place(left, asked)) =>
        {
            warn!(
                before = %asked, now = %kept,
                "--metastore names the place that the metadata has left: change it, or drop it"
            );
            Ok(kept.clone())
        }
        (Some(kept), Some(asked)) if !is_same_place(kept, asked) => {
            Err(OpenError::Elsewhere { asked: asked.to_string(), kept: kept.to_string() })
        }
        (_, Some(asked)) => Ok(asked.clone()),
        (None, None) => Ok(MetastoreUrl::Sled),
    }
}

/// Whether both name the same metadata, by their names: members of an etcd come and go.
pub(crate) fn is_same_place(a: &MetastoreUrl, b: &MetastoreUrl) -> bool {
    match (a, b) {
        (MetastoreUrl::Sled, MetastoreUrl::Sled) | (MetastoreUrl::Store, MetastoreUrl::Store) => true,
        (MetastoreUrl::Etcd(a), MetastoreUrl::Etcd(b)) => a.prefix == b.prefix,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn url(text: &str) -> MetastoreUrl {
        text.parse().expect("a URL")
    }

    #[test]
    fn a_first_node_goes_on_where_it_began() {
        let data = TempDir::new().expect("a directory");
        let first = |asked: Option<&str>| of_first(data.path(), asked.map(url).as_ref());
        assert_eq!(first(None).expect("the default"), MetastoreUrl::Sled);
        assert_eq!(first(Some("etcd://one/p")).expect("nothing is there yet"), url("etcd://one/p"));
        assert_eq!(first(None).expect("kept"), url("etcd://one/p"));
        assert_eq!(first(Some("etcd://two/p")).expect("the same place"), url("etcd://two/p"));
        assert_eq!(first(None).expect("kept"), url("etcd://two/p"));
        for other in ["sled", "store", "etcd://two:2379/q"] {
            let refused = first(Some(other)).expect_err("elsewhere").to_string();
            assert!(
                refused.contains(&url(other).to_string()) && refused.contains("etcd://two:2379/p"),
                "{refused}"
            );
        }
        fs::write(data.path().join(KEPT), "store\n").expect("writes");
        assert_eq!(first(None).expect("kept"), MetastoreUrl::Store);
        fs::write(data.path().join(KEPT), "nonsense").expect("writes");
        let refused = first(None).expect_err("unreadable").to_string();
        assert!(refused.contains("metastore does not say"), "{refused}");
    }

    #[test]
    fn a_sled_that_is_there_is_not_left_behind() {
        let data = TempDir::new().expect("a directory");
        fs::create_dir(data.path().join("meta")).expect("made");
        assert_eq!(of_first(data.path(), None).expect("kept"), MetastoreUrl::Sled);
        assert!(matches!(of_first(data.path(), Some(&url("etcd://one"))), Err(OpenError::Elsewhere { .. })));
    }

    #[test]
    fn a_place_that_was_left_is_named_by_settings_for_a_while() {
        let data = TempDir::new().expect("a directory");
        remember(data.path(), &url("etcd://one/p")).expect("writes");
        let first = |asked: &str| of_first(data.path(), Some(&url(asked)));
        assert!(first("store").is_err() && first("sled").is_err());
        for _ in 0..2 {
            leave(data.path(), &MetastoreUrl::Store).expect("writes");
        }
        leave(data.path(), &url("etcd://two/q")).expect("writes");
        assert_eq!(left(data.path()), [MetastoreUrl::Store, url("etcd://two/q")]);
        for asked in ["store", "etcd://three/q"] {
            assert_eq!(first(asked).expect("it was left"), url("etcd://one/p"));
            let joined = of_joined(data.path(), Some(&url("etcd://one/p")), Some(&url(asked)));
            assert_eq!(joined.expect("it was left"), url("etcd://one/p"));
        }
        assert!(first("sled").is_err(), "it was never there");
        assert_eq!(first("etcd://near/p").expect("another way"), url("etcd://near/p"));
    }

    #[test]
    fn a_joined_node_believes_the_first_one_but_for_the_way() {
        let data = TempDir::new().expect("a directory");
        let data = data.path();
        let told = url("etcd://one/p");
        assert_eq!(of_joined(data, Some(&told), None).expect("told"), url("etcd://one/p"));
        assert_eq!(
            of_joined(data, Some(&told), Some(&url("etcd://near/p"))).expect("a way"),
            url("etcd://near/p")
        );
        assert!(of_joined(data, Some(&told), Some(&MetastoreUrl::Sled)).is_err());
        assert_eq!(of_joined(data, Some(&MetastoreUrl::Store), None).expect("told"), MetastoreUrl::Store);
        assert_eq!(of_joined(data, None, None).expect("with the first node"), MetastoreUrl::Sled);
        assert!(of_joined(data, None, Some(&url("etcd://one"))).is_err());
    }
}
