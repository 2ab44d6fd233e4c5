//go:build unix

package acp_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sortie-ai/acp"
)

// A runtime on another host needs a host that ssh knows, the same workspace
// path on both sides, and nothing else. Here a script stands for ssh: it runs
// the remote command on this machine.
func ExampleSSH() {
	const ssh = "#!/bin/sh\nfor script; do :; done\nexec sh -c \"$script\"\n"
	bin, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(bin) }()
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(ssh), 0o700); err != nil { // #nosec G306 -- a program
		fmt.Println(err)
		return
	}
	path := os.Getenv("PATH")
	_ = os.Setenv("PATH", bin+":"+path)
	defer func() { _ = os.Setenv("PATH", path) }()

	c := exampleConfig()
	c.SSH = &acp.SSH{Host: "build-host", PassEnv: []string{"API_KEY"}}
	a, err := acp.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := a.Start(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := s.RunTurn(context.Background(), "long 2", nil)
	fmt.Println(result.ExitReason, err)
	fmt.Println("tool servers:", s.Info().ToolServers)
	fmt.Println("stopped:", s.Stop(context.Background()))
	// Output:
	// turn_completed <nil>
	// tool servers: false
	// stopped: <nil>
}
