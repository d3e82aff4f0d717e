//! Objects of programs that keep more in a store than data sets, under keys of their own whose end tells
//! their digest: put whole, read whole and verified, listed by folder. Does not know their contents; garbage
//! collection leaves them alone.

use std::path::Path as FilePath;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use shardfmt::Digest;

use super::{Object, ObjectKind, Origin, OriginError, StoreTime, StoredObject, blocking, check_digest};

impl Origin {
    /// Makes `bytes` the content at `key`, durably and at once: a reader sees all of it or nothing. `what` is
    /// what people call it. The same key comes with the same bytes, so twice does no harm, and a damaged copy
    /// is replaced.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server.
    pub async fn put_keyed(&self, key: String, what: &str, bytes: Bytes) -> Result<(), OriginError> {
        self.put(&Object::new(key, what), bytes).await
    }

    /// The content at `key`, verified against its digest.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] and [`OriginError::Corrupt`] when its bytes are not those that were put,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn keyed(&self, key: String, what: &str, digest: Digest) -> Result<Bytes, OriginError> {
        self.read_as(&Object::new(key, what), &self.metadata, move |bytes| {
            check_digest(digest, Digest::of(bytes))?;
            Ok(bytes.clone())
        })
        .await
    }

    /// The objects of a folder, in the order of keys. One that is not there has nothing in it.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn list_folder(&self, folder: &str) -> Result<Vec<StoredObject>, OriginError> {
        let listed = self.store.list(Some(&Path::from(folder))).map_ok(|meta| StoredObject {
            key: meta.location.to_string(),
            kind: ObjectKind::Unknown,
            bytes: meta.size,
            written: StoreTime::of(&meta),
        });
        let listed: Result<Vec<StoredObject>, _> = listed.try_collect().await;
        let mut found =
            listed.map_err(|error| self.failed("list", &Object::new(folder.to_owned(), folder), error))?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// Removes what puts that were killed halfway left in a folder at least `age` before `now`: files of a directory that are no
    /// objects. How many there were; a service elsewhere has none that can be seen.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the directory cannot be read.
    pub async fn clear_folder(
        &self,
        folder: &str,
        age: Duration,
        now: StoreTime,
    ) -> Result<usize, OriginError> {
        let Some(root) = &self.root else { return Ok(0) };
        let directory = root.join(folder);
        let cleared = blocking(move || clear(&directory, age, now)).await;
        cleared.map_err(|error| {
            let error = object_store::Error::Generic { store: "directory", source: error.into() };
            self.failed("clear", &Object::new(folder.to_owned(), folder), error)
        })
    }
}

fn clear(directory: &FilePath, age: Duration, now: StoreTime) -> io::Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        // How a directory names an unfinished object: its key, `#` and a number.
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
        let is_leftover =
            number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()));
        // One that is gone by now was finished after all.
        let Some(meta) = entry.metadata().ok().filter(|meta| is_leftover && meta.is_file()) else { continue };
        if StoreTime::at(meta.modified()?).is_older(age, now) {
            fs::remove_file(entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_puts_left_long_ago_is_cleared() {
        let root = tempfile::tempdir().unwrap();
        let origin = Origin::open_dir(root.path()).unwrap();
        let now = StoreTime::here();
        assert_eq!(
            origin.clear_folder("runs/a", Duration::ZERO, now).await.unwrap(),
            0,
            "there is no folder"
        );
        origin.put_keyed("runs/a/1.json".into(), "a thing", Bytes::from_static(b"one")).await.unwrap();
        for name in ["1.json#2", "2.json#1", "3.json#", "4#x", "5"] {
            fs::write(root.path().join("runs/a").join(name), b"half").unwrap();
        }
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(origin.clear_folder("runs/a", day, now).await.unwrap(), 0, "they are young");
        let later = StoreTime::at(std::time::SystemTime::now() + 2 * day);
        assert_eq!(origin.clear_folder("runs/a", day, later).await.unwrap(), 2);
        assert_eq!(fs::read_dir(root.path().join("runs/a")).unwrap().count(), 4);
    }
}
