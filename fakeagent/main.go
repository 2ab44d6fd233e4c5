// Command fakeagent is a pretend runtime for demonstrations and tests: see
// package script.
package main

import (
	"os"

	"github.com/sortie-ai/acp/fakeagent/script"
)

func main() {
	os.Exit(script.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
