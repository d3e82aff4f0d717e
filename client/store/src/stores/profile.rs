//! Credentials of Amazon S3 from the profile files of its own tools (`~/.aws/credentials`, `~/.aws/config`):
//! keys that stand there, or what a `credential_process` prints. Both may be short-lived: files are read
//! again when they change, the process runs again before its credentials expire.
//!
//! The forms are those of the [AWS SDKs and Tools Reference Guide](https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html)
//! and of [process credentials](https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html).

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use async_trait::async_trait;
use configparser::ini::Ini;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Credentials that expire within this time are renewed.
const EARLY: Duration = Duration::from_secs(5 * 60);
/// A process that prints credentials may have to ask someone.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A profile of the user.
pub(super) struct Profile {
    name: String,
    files: [PathBuf; 2],
    region: Option<String>,
    endpoint: Option<String>,
    held: Mutex<Option<Held>>,
}

/// Credentials, and how long they are good.
struct Held {
    credential: Arc<AwsCredential>,
    until: Until,
}

enum Until {
    /// As long as the files are of this age.
    Changed([Option<SystemTime>; 2]),
    Expired(Option<SystemTime>),
}

/// The output of a `credential_process`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Why a profile gives no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    #[error("profile {name:?} is not in {files}; check AWS_PROFILE")]
    Missing { name: String, files: String },
    #[error("{}: not a file of profiles ({reason}); correct it", .path.display())]
    File { path: PathBuf, reason: String },
    #[error(
        "profile {name:?} has neither keys nor a credential_process; give it one: credential_process = aws configure export-credentials --profile {name} --format process"
    )]
    NoKeys { name: String },
    #[error("credential_process of profile {name:?} {reason}; run it by hand to see why")]
    Process { name: String, reason: String },
}

impl Profile {
    /// The profile to go by: the one that AWS_PROFILE names; without it the default one, if there is one and the
    /// environment has no keys.
    pub(super) fn of_user() -> Option<Result<Profile, ProfileError>> {
        let chosen = set("AWS_PROFILE");
        let has_keys = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
        if chosen.is_none() && has_keys.iter().any(|name| set(name).is_some()) {
            return None;
        }
        let home = set("HOME").map(PathBuf::from).unwrap_or_default().join(".aws");
        let file = |variable, name| set(variable).map_or_else(|| home.join(name), PathBuf::from);
        let files = [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")];
        let name = chosen.clone().unwrap_or_else(|| "default".to_owned());
        match Profile::open(name, files) {
            // No setting asks for it.
            Err(ProfileError::Missing { .. } | ProfileError::NoKeys { .. }) if chosen.is_none() => None,
            opened => Some(opened),
        }
    }

    fn open(name: String, files: [PathBuf; 2]) -> Result<Profile, ProfileError> {
        let mut profile = Profile { name, files, region: None, endpoint: None, held: Mutex::new(None) };
        let settings = profile.read()?;
        profile.region = settings.get("region");
        profile.endpoint = settings.get("endpoint_url");
        let has = |key| settings.get(key).is_some();
        let has_keys = has("aws_access_key_id") && has("aws_secret_access_key");
        if !has_keys && !has("credential_process") {
            return Err(ProfileError::NoKeys { name: profile.name });
        }
        Ok(profile)
    }

    pub(super) fn region(&self) -> Option<String> {
        self.region.clone()
    }

    pub(super) fn endpoint(&self) -> Option<String> {
        self.endpoint.clone()
    }

    /// Its settings in both files.
    fn read(&self) -> Result<Settings, ProfileError> {
        let mut found = Vec::new();
        for (path, is_config) in self.files.iter().zip([false, true]) {
            let Ok(text) = fs::read_to_string(path) else { continue };
            let mut ini = Ini::new_cs();
            ini.set_inline_comment_symbols(Some(&[]));
            let refused = |reason| ProfileError::File { path: path.clone(), reason };
            let mut sections = ini.read(text).map_err(refused)?;
            let section = match is_config && self.name != "default" {
                true => format!("profile {}", self.name),
                false => self.name.clone(),
            };
            found.extend(sections.remove(&section));
        }
        if found.is_empty() {
            let files = self.files.each_ref().map(|path| path.display().to_string()).join(" or ");
            return Err(ProfileError::Missing { name: self.name.clone(), files });
        }
        Ok(Settings(found))
    }

    async fn renew(&self) -> Result<Held, ProfileError> {
        // Looked at before they are read: a change between is seen the next time.
        let ages = self.ages();
        let settings = self.read()?;
        if let (Some(key_id), Some(secret_key)) =
            (settings.get("aws_access_key_id"), settings.get("aws_secret_access_key"))
        {
            let credential = AwsCredential { key_id, secret_key, token: settings.get("aws_session_token") };
            return Ok(Held { credential: Arc::new(credential), until: Until::Changed(ages) });
        }
        let command = settings.get("credential_process");
        let command = command.ok_or_else(|| ProfileError::NoKeys { name: self.name.clone() })?;
        let failed = |reason: String| ProfileError::Process { name: self.name.clone(), reason };
        let running = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = timeout(TIMEOUT, running).await;
        let output = output.map_err(|_| failed(format!("takes longer than {TIMEOUT:?}")))?;
        let output = output.map_err(|error| failed(format!("cannot be run ({error})")))?;
        if !output.status.success() {
            return Err(failed(format!("has failed ({})", output.status)));
        }
        // Its output is secret: an error names only the place.
        let printed: Printed = serde_json::from_slice(&output.stdout)
            .map_err(|error| failed(format!("prints no credentials (line {})", error.line())))?;
        if printed.version != 1 {
            return Err(failed(format!("prints version {}, not 1", printed.version)));
        }
        let expires = match &printed.expiration {
            None => None,
            Some(text) => Some(moment(text).ok_or_else(|| failed(format!("prints {text:?} as a time")))?),
        };
        let credential = AwsCredential {
            key_id: printed.access_key_id,
            secret_key: printed.secret_access_key,
            token: printed.session_token,
        };
        Ok(Held { credential: Arc::new(credential), until: Until::Expired(expires) })
    }

    fn ages(&self) -> [Option<SystemTime>; 2] {
        self.files.each_ref().map(|path| age(path))
    }

    fn is_good(&self, held: &Held) -> bool {
        match held.until {
            Until::Changed(ages) => ages == self.ages(),
            Until::Expired(None) => true,
            Until::Expired(Some(expires)) => SystemTime::now() + EARLY < expires,
        }
    }
}

#[async_trait]
impl CredentialProvider for Profile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut held = self.held.lock().await;
        if let Some(held) = held.as_ref().filter(|held| self.is_good(held)) {
            return Ok(held.credential.clone());
        }
        let renewed = self.renew().await.map_err(|error| Error::Unauthenticated {
            path: format!("profile {}", self.name),
            source: error.into(),
        })?;
        let credential = renewed.credential.clone();
        *held = Some(renewed);
        Ok(credential)
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Sections about one profile, the first of which wins.
struct Settings(Vec<HashMap<String, Option<String>>>);

impl Settings {
    fn get(&self, key: &str) -> Option<String> {
        let values = self.0.iter().filter_map(|section| section.get(key)?.clone());
        values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
    }
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn age(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// A moment as RFC 3339 has it.
fn moment(text: &str) -> Option<SystemTime> {
    let nanoseconds = string_to_timestamp_nanos(text).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn profile(home: &TempDir, name: &str) -> Result<Profile, ProfileError> {
        Profile::open(name.to_owned(), ["credentials", "config"].map(|file| home.path().join(file)))
    }

    async fn key(profile: &Profile) -> String {
        profile.get_credential().await.expect("credentials").key_id.clone()
    }

    #[tokio::test]
    async fn keys_are_those_that_the_files_have_now() {
        let home = TempDir::new().expect("a temporary directory");
        let credentials = home.path().join("credentials");
        let write = |key: &str| {
            let text = format!(
                "[default]\naws_access_key_id=other\n\n# mine\n[me]\naws_access_key_id = {key}\naws_secret_access_key = a#b;c=d\n"
            );
            fs::write(&credentials, text).expect("written");
        };
        write("one");
        fs::write(home.path().join("config"), "[profile me]\nregion = mars-1\nendpoint_url = http://x:1\n")
            .expect("written");
        let me = profile(&home, "me").expect("keys");
        assert_eq!((me.region(), me.endpoint()), (Some("mars-1".to_owned()), Some("http://x:1".to_owned())));
        let credential = me.get_credential().await.expect("credentials");
        assert_eq!((credential.key_id.as_str(), credential.secret_key.as_str()), ("one", "a#b;c=d"));
        write("two");
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options()
            .write(true)
            .open(&credentials)
            .and_then(|file| file.set_modified(later))
            .expect("dated");
        assert_eq!(key(&me).await, "two");
        let missing = profile(&home, "you").expect_err("no such profile").to_string();
        assert!(missing.contains("\"you\"") && missing.contains("AWS_PROFILE"), "{missing}");
        let lacking = profile(&home, "default").expect_err("half a key").to_string();
        assert!(lacking.contains("export-credentials"), "{lacking}");
    }

    #[tokio::test]
    async fn a_process_is_asked_again_when_what_it_gave_expires() {
        let home = TempDir::new().expect("a temporary directory");
        let asked = home.path().join("asked");
        let of = |name: &str, expiration: &str| {
            let text = format!(
                "[profile {name}]\ncredential_process = echo x >> {0} && echo '{{\"Version\": 1, \"AccessKeyId\": \"'$(wc -l < {0})'\", \"SecretAccessKey\": \"s\"{expiration}}}'\n",
                asked.display()
            );
            fs::write(home.path().join("config"), text).expect("written");
            profile(&home, name).expect("a process")
        };
        let lasting = of("lasting", ", \"Expiration\": \"2100-01-01T00:00:00Z\"");
        assert_eq!((key(&lasting).await, key(&lasting).await), ("1".to_owned(), "1".to_owned()));
        let expired = of("expired", ", \"Expiration\": \"2020-01-01T00:00:00Z\"");
        assert_eq!((key(&expired).await, key(&expired).await), ("2".to_owned(), "3".to_owned()));
        let text = "[profile broken]\ncredential_process = echo my secret; exit 3\n";
        fs::write(home.path().join("config"), text).expect("written");
        let broken = profile(&home, "broken").expect("a process");
        let error = broken.get_credential().await.expect_err("no credentials");
        let text = super::super::refusal::last_cause(&error);
        assert!(text.contains("exit status: 3") && !text.contains("secret"), "{text}");
    }
}
