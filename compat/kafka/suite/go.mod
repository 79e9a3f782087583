module compat/suite

go 1.25
