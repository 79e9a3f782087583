//! Written by `cargo xtask codegen`: the messages of `google.type`.

#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Expr {
    #[prost(string, tag = "1")]
    pub expression: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub title: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub description: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub location: ::prost::alloc::string::String,
}
