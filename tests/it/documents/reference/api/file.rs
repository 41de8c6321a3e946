//! One file of the API, with its comments by their places.

use std::collections::HashMap;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};

use super::{Call, Enumeration, Field, Kind, Message, PACKAGE, Part};

// Numbers of fields in descriptor.proto, of which the places of comments are made.
const FILE_MESSAGE: i32 = 4;
const FILE_ENUM: i32 = 5;
const FILE_SERVICE: i32 = 6;
const SERVICE_METHOD: i32 = 2;
const MESSAGE_FIELD: i32 = 2;
const MESSAGE_NESTED: i32 = 3;
const MESSAGE_ENUM: i32 = 4;
const MESSAGE_ONEOF: i32 = 8;
const ENUM_VALUE: i32 = 2;

/// A file and its comments by their places.
pub struct File<'a> {
    file: &'a FileDescriptorProto,
    comments: HashMap<&'a [i32], &'a str>,
}

impl<'a> File<'a> {
    pub fn new(file: &'a FileDescriptorProto) -> File<'a> {
        let places = &file.source_code_info.as_ref().expect("comments are kept").location;
        let comments = places.iter().map(|it| (it.path.as_slice(), it.leading_comments()));
        File { file, comments: comments.collect() }
    }

    fn comment(&self, path: &[i32]) -> String {
        let text = self.comments.get(path).copied().unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let text = lines.join("\n").trim().to_string();
        assert!(!text.is_empty(), "{} {path:?} has no comment", self.file.name());
        text
    }

    /// The comment of its service.
    pub fn of_service(&self) -> String {
        self.comment(&[FILE_SERVICE, 0])
    }

    pub fn calls(&self) -> Vec<Call> {
        let ours = |name: &str| name.strip_prefix(PACKAGE).unwrap().to_string();
        let calls = self.file.service[0].method.iter().zip(0..);
        let calls = calls.map(|(method, number)| Call {
            name: method.name().to_string(),
            comment: self.comment(&[FILE_SERVICE, 0, SERVICE_METHOD, number]),
            request: ours(method.input_type()),
            answer: ours(method.output_type()),
            client_streams: method.client_streaming(),
            server_streams: method.server_streaming(),
        });
        calls.collect()
    }

    pub fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (message, number) in self.file.message_type.iter().zip(0..) {
            self.message(message, "", &[FILE_MESSAGE, number], &mut parts);
        }
        for (enumeration, number) in self.file.enum_type.iter().zip(0..) {
            parts.push(self.enumeration(enumeration, "", &[FILE_ENUM, number]));
        }
        parts
    }

    /// A message, and those that are defined in it.
    fn message(&self, it: &DescriptorProto, outer: &str, path: &[i32], parts: &mut Vec<Part>) {
        let name = format!("{outer}{}", it.name());
        let at = |kind, number| [path, &[kind, number]].concat();
        let is_real = |field: &FieldDescriptorProto| !field.proto3_optional();
        let real = it.field.iter().filter(|field| is_real(field)).filter_map(|it| it.oneof_index);
        let choices =
            it.oneof_decl.iter().zip(0..).take(real.max().map_or(0, |it| it as usize + 1));
        let choices = choices.map(|(one, number)| {
            (one.name().to_string(), self.comment(&at(MESSAGE_ONEOF, number)))
        });
        let fields = it.field.iter().zip(0..).map(|(field, number)| Field {
            name: field.name().to_string(),
            comment: self.comment(&at(MESSAGE_FIELD, number)),
            kind: map_of(it, field).unwrap_or_else(|| Kind::of(field)),
            choice: field.oneof_index.filter(|_| is_real(field)).map(|it| it as usize),
        });
        parts.push(Part::Message(Message {
            name: name.clone(),
            comment: self.comment(path),
            fields: fields.collect(),
            choices: choices.collect(),
        }));
        let outer = format!("{name}.");
        for (nested, number) in it.nested_type.iter().zip(0..) {
            if !nested.options.as_ref().is_some_and(|options| options.map_entry()) {
                self.message(nested, &outer, &at(MESSAGE_NESTED, number), parts);
            }
        }
        for (nested, number) in it.enum_type.iter().zip(0..) {
            parts.push(self.enumeration(nested, &outer, &at(MESSAGE_ENUM, number)));
        }
    }

    fn enumeration(&self, it: &EnumDescriptorProto, outer: &str, path: &[i32]) -> Part {
        let values = it.value.iter().zip(0..).map(|(value, number)| {
            let comment = self.comment(&[path, &[ENUM_VALUE, number]].concat());
            (value.name().to_string(), value.number(), comment)
        });
        Part::Enumeration(Enumeration {
            name: format!("{outer}{}", it.name()),
            comment: self.comment(path),
            values: values.collect(),
        })
    }
}

/// The type of a map, which is written as a message of its own.
fn map_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> Option<Kind> {
    let name = field.type_name().rsplit('.').next()?;
    let entry = message.nested_type.iter().find(|nested| nested.name() == name)?;
    let is_map = entry.options.as_ref().is_some_and(|options| options.map_entry());
    let [key, value] = entry.field.as_slice() else { return None };
    is_map.then(|| Kind::Map(Kind::of(key).into(), Kind::of(value).into()))
}
