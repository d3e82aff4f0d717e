//! Files that an upload left in a directory because it was killed. A directory names them by their key, `#` and a number,
//! and does not list them.

use std::path::Path as FilePath;
use std::time::Duration;
use std::{fs, io};

use super::{Object, Origin, OriginError, StoreTime, blocking};

/// A file of an upload that did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The key that its object would have.
    pub key: String,
    /// Its size.
    pub bytes: u64,
}

impl Origin {
    /// The files of killed uploads in a folder and the folders in it, at least `age` before `now`, of the keys that are wanted. With
    /// `delete` they go. A service elsewhere has none that can be seen.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the directory cannot be read.
    pub async fn unfinished(
        &self,
        folder: &str,
        age: Duration,
        now: StoreTime,
        delete: bool,
        is_wanted: fn(&str) -> bool,
    ) -> Result<Vec<Unfinished>, OriginError> {
        let Some(root) = self.root.clone() else { return Ok(Vec::new()) };
        let name = if folder.is_empty() { "the files of killed uploads" } else { folder }.to_owned();
        let folder = root.join(folder);
        let found = blocking(move || collect(&root, folder.as_path(), age, now, delete, is_wanted)).await;
        found.map_err(|error| {
            let error = object_store::Error::Generic { store: "directory", source: error.into() };
            self.failed("clear", &Object::new(name.clone(), name), error)
        })
    }
}

fn collect(
    root: &FilePath,
    folder: &FilePath,
    age: Duration,
    now: StoreTime,
    delete: bool,
    is_wanted: fn(&str) -> bool,
) -> io::Result<Vec<Unfinished>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).ok().and_then(FilePath::to_str);
            let Some(key) = name.and_then(key_of).filter(|key| is_wanted(key)) else { continue };
            // One that is gone by now was finished after all.
            let Ok(meta) = entry.metadata() else { continue };
            if StoreTime::at(meta.modified()?).is_older(age, now) {
                match if delete { fs::remove_file(&path) } else { Ok(()) } {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    removed => removed?,
                }
                found.push(Unfinished { key: key.to_owned(), bytes: meta.len() });
            }
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// The key of an unfinished object, by the name of its file.
fn key_of(name: &str) -> Option<&str> {
    let (key, number) = name.rsplit_once('#')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(key)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn only_files_that_uploads_left_long_ago_are_found() {
        let root = tempfile::tempdir().unwrap();
        let origin = Origin::open_dir(root.path()).unwrap();
        let (here, day) = (StoreTime::here(), Duration::from_secs(24 * 3600));
        let any = |_: &str| true;
        assert_eq!(origin.unfinished("runs", day, here, true, any).await.unwrap(), [], "there is no folder");
        origin.put_keyed("runs/a/1.json".into(), "a thing", Bytes::from_static(b"one")).await.unwrap();
        for name in ["1.json#2", "2.json#1", "3.json#", "4#x", "5"] {
            fs::write(root.path().join("runs/a").join(name), b"half").unwrap();
        }
        assert_eq!(origin.unfinished("runs", day, here, true, any).await.unwrap(), [], "they are young");
        let later = StoreTime::at(std::time::SystemTime::now() + 2 * day);
        let file = |key: &str| Unfinished { key: key.to_owned(), bytes: 4 };
        let both = [file("runs/a/1.json"), file("runs/a/2.json")];
        assert_eq!(origin.unfinished("runs", day, later, false, any).await.unwrap(), both);
        let second = |key: &str| key.ends_with("2.json");
        assert_eq!(origin.unfinished("", day, later, true, second).await.unwrap(), both[1..]);
        assert_eq!(origin.unfinished("runs/a", day, later, true, any).await.unwrap(), both[..1]);
        assert_eq!(fs::read_dir(root.path().join("runs/a")).unwrap().count(), 4, "the others stay");
    }
}
