// Package driver is the loop of a driver in Go. drivers.py describes the format of its lines.
package driver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// Missing is the reason why the library does not support a call.
type Missing string

func (m Missing) Error() string { return string(m) }

// Refused is an error with all the names by which a program could recognize it.
type Refused struct {
	Names   []string
	Message string
}

func (r Refused) Error() string { return fmt.Sprint(r.Names, ": ", r.Message) }

type request struct {
	Call string          `json:"call"`
	With json.RawMessage `json:"with"`
}

// Main takes the path of the library's module and answers until the input ends.
func Main(name, module string, call func(name string, with json.RawMessage) (any, error)) {
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	write := func(line any) {
		if err := out.Encode(line); err != nil {
			panic(err)
		}
	}
	write(map[string]string{"name": name, "version": version(module)})
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		done, err := call(asked.Call, asked.With)
		var missing Missing
		var refused Refused
		switch {
		case err == nil:
			write(map[string]any{"ok": done})
		case errors.As(err, &missing):
			write(map[string]any{"missing": missing})
		case errors.As(err, &refused):
			write(map[string]any{"error": map[string]any{"names": refused.Names, "message": refused.Message}})
		default:
			names := []string{fmt.Sprintf("%T", err)}
			write(map[string]any{"error": map[string]any{"names": names, "message": err.Error()}})
		}
	}
}

func version(module string) string {
	if info, is := debug.ReadBuildInfo(); is {
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return strings.TrimPrefix(dependency.Version, "v")
			}
		}
	}
	return "unknown"
}
