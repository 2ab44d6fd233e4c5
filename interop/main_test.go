package interop

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var (
	set    = flag.String("set", "all", "which runtimes: all, or ci for the smaller set")
	update = flag.Bool("update", false, "add what is seen to docs/INTEROP.md")
)

var table = &verdicts{}

// roleName is the variable that makes the test binary play a counterpart.
const roleName = "INTEROP_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleName) {
	case "coder":
		runCoderAgent()
		return
	case "stubborn":
		runStubborn()
		return
	case "mcp":
		runMCPServer()
		return
	case "lines":
		runLineAgent()
		return
	}
	flag.Parse()
	code := m.Run()
	table.print()
	if *update {
		if err := updateDocument(table); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}
