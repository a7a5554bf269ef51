// Writes the archive of a module into a folder that serves as GOPROXY: archive FOLDER MODULE VERSION PROXY
package main

import (
	"log"
	"os"
	"path/filepath"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	folder, version, proxy := os.Args[1], module.Version{Path: os.Args[2], Version: os.Args[3]}, os.Args[4]
	versions := filepath.Join(proxy, version.Path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		log.Fatal(err)
	}
	write(filepath.Join(versions, "list"), version.Version+"\n")
	write(filepath.Join(versions, version.Version+".info"), `{"Version": "`+version.Version+`"}`)
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		log.Fatal(err)
	}
	write(filepath.Join(versions, version.Version+".mod"), string(mod))
	archive, err := os.Create(filepath.Join(versions, version.Version+".zip"))
	if err != nil {
		log.Fatal(err)
	}
	if err := zip.CreateFromDir(archive, version, folder); err != nil {
		log.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		log.Fatal(err)
	}
}

func write(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}
