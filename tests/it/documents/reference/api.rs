//! The API as its descriptors tell it, with the comments, in the order of the page.

mod file;

use procyard::grpc::pb::FILE_DESCRIPTORS;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{FieldDescriptorProto, FileDescriptorSet};

use file::File;

const PACKAGE: &str = ".procyard.v1.";
const SERVICE: &str = "procyard/v1/service.proto";
/// The files, in reading order, and what they are about.
const TITLES: [(&str, &str); 9] = [
    ("lifecycle", "Starting and ending"),
    ("spec", "What to run"),
    ("process", "What became of it"),
    ("records", "Finding processes"),
    ("transcript", "Reading output"),
    ("wait", "Waiting"),
    ("input", "Typing, terminals and signals"),
    ("events", "Events and sleep"),
    ("info", "The server"),
];

pub struct Api {
    pub comment: String,
    pub calls: Vec<Call>,
    pub sections: Vec<Section>,
}

pub struct Call {
    pub name: String,
    pub comment: String,
    pub request: String,
    pub answer: String,
    pub client_streams: bool,
    pub server_streams: bool,
}

/// What one file defines.
pub struct Section {
    pub title: &'static str,
    pub parts: Vec<Part>,
}

pub enum Part {
    Message(Message),
    Enumeration(Enumeration),
}

pub struct Message {
    pub name: String,
    pub comment: String,
    pub fields: Vec<Field>,
    /// Names and comments of those of which one is given.
    pub choices: Vec<(String, String)>,
}

pub struct Field {
    pub name: String,
    pub comment: String,
    pub kind: Kind,
    /// Which of the message's choices it is one of.
    pub choice: Option<usize>,
}

pub struct Enumeration {
    pub name: String,
    pub comment: String,
    pub values: Vec<(String, i32, String)>,
}

/// A type, with what stands before it.
pub enum Kind {
    Plain(&'static str, String),
    Ours(&'static str, String),
    Map(Box<Kind>, Box<Kind>),
}

impl Api {
    pub fn read() -> Api {
        let files = FileDescriptorSet::decode(FILE_DESCRIPTORS).unwrap().file;
        let file = |name: &str| files.iter().find(|file| file.name() == name);
        let service = File::new(file(SERVICE).unwrap());
        let known = files.iter().filter(|file| file.package() == "procyard.v1").count();
        assert_eq!(known, TITLES.len() + 1, "each file has its title");
        let sections = TITLES.iter().map(|(name, title)| {
            let file = File::new(file(&format!("procyard/v1/{name}.proto")).unwrap());
            Section { title, parts: file.parts() }
        });
        Api { comment: service.of_service(), calls: service.calls(), sections: sections.collect() }
    }
}

impl Part {
    pub fn name(&self) -> &str {
        match self {
            Part::Message(message) => &message.name,
            Part::Enumeration(enumeration) => &enumeration.name,
        }
    }
}

impl Kind {
    /// Its text; `link` makes that of our own types.
    pub fn text(&self, link: impl Fn(&str) -> String + Copy) -> String {
        match self {
            Kind::Plain(before, name) => format!("{before}{name}"),
            Kind::Ours(before, name) => format!("{before}{}", link(name)),
            Kind::Map(key, value) => format!("map of {} to {}", key.text(link), value.text(link)),
        }
    }

    fn of(field: &FieldDescriptorProto) -> Kind {
        let before = match field.label() {
            Label::Repeated => "repeated ",
            _ if field.proto3_optional() => "optional ",
            _ => "",
        };
        let name = field.type_name();
        match field.r#type() {
            Type::Message | Type::Enum => match name.strip_prefix(PACKAGE) {
                Some(ours) => Kind::Ours(before, ours.to_string()),
                None => Kind::Plain(before, foreign(name)),
            },
            plain => Kind::Plain(before, plain.as_str_name().replace("TYPE_", "").to_lowercase()),
        }
    }
}

/// One of protobuf's own types, with a link to what it is.
fn foreign(name: &str) -> String {
    let short = name.rsplit('.').next().unwrap();
    let page = "https://protobuf.dev/reference/protobuf/google.protobuf/";
    format!("[{short}]({page}#{})", short.to_lowercase())
}
