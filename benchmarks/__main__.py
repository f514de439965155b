"""``python -m benchmarks COMMAND``; other processes that import this module start nothing."""

if __name__ == "__main__":
    from atlas.cli.process import prepare

    prepare()  # before torch is imported
    from benchmarks.command import main

    main()
